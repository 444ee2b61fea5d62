"""Equal to single or not: from which step on, and in which parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dream.tools.verify import gaps
from dream.tools.verify.cells import Cell
from dream.tools.verify.gaps import Gap
from dream.tools.verify.noise import Noise
from dream.tools.verify.runs import Failed, Outcome, Ran
from dream.tools.verify.tolerance import NOISE, Tolerance


class Verdict(StrEnum):
    EQUAL = "equal"
    DIFFERS = "DIFFERS"
    RANKS_DIFFER = "RANKS DIFFER"
    WRONG_PLACE = "WRONG PLACE"
    FAILED = "FAILED"
    REFUSED = "REFUSED"
    UNAVAILABLE = "CANNOT RUN"
    INEXACT = "NOT EXACT"


@dataclass(frozen=True, slots=True)
class Judged:
    """One strategy held against single.

    reason: why it is not equal. first_step: the first one, from 1, whose loss leaves what is
    allowed. parameters: each where it differs most. rounding: those that are equal only by how far
    single is from itself. noise: where it was measured.
    """

    cell: Cell
    verdict: Verdict
    reason: str = ""
    outcome: Outcome | None = None
    losses: Sequence[float] = ()
    first_step: int | None = None
    parameters: Sequence[Gap] = ()
    rounding: Sequence[Gap] = ()
    noise: Noise | None = None

    @property
    def good(self) -> bool:
        return self.verdict is Verdict.EQUAL

    @property
    def largest(self) -> float | None:
        """The largest difference of any parameter."""
        return max((gap.size for gap in self.parameters), default=None)

    @property
    def worst(self) -> Gap | None:
        return max(self.parameters, key=lambda gap: gap.times, default=None)

    @property
    def ran(self) -> Ran | None:
        return self.outcome if isinstance(self.outcome, Ran) else None


def judge(
    cell: Cell, ours: Outcome, single: Ran, noise: Callable[[], Noise] | None = None
) -> Judged:
    """noise: measures how far single is from itself, where rounding alone may be what differs;
    None to do without."""
    if isinstance(ours, Failed) and ours.refused:
        return Judged(cell, Verdict.REFUSED, ours.refused, ours)
    if isinstance(ours, Failed):
        return Judged(cell, Verdict.FAILED, ours.reason, ours)
    place = (ours.first.world_size, ours.first.replicas)
    allowed = Tolerance(single.first.dtype, single.updates)
    judged = _held(cell, ours, single, allowed, None)
    if judged.verdict is Verdict.DIFFERS and judged.first_step != 1 and noise is not None:
        found = noise()
        judged = _held(cell, ours, single, allowed, found)
    if judged.good and place[0] != cell.processes:
        said = f"It ran on {place[0]} ranks, not on {cell.processes}."
        return Judged(cell, Verdict.WRONG_PLACE, said, ours)
    return judged


def _held(cell: Cell, ours: Ran, single: Ran, allowed: Tolerance, noise: Noise | None) -> Judged:
    losses = gaps.of_losses(ours.losses, single.losses)
    first = _first_bad(losses, single.losses, allowed, noise)
    plain = _worst(ours, single, allowed, None)
    parameters = _worst(ours, single, allowed, noise)
    worst = max(parameters, key=lambda gap: gap.times, default=None)
    rounding = [gap for gap, strict in zip(parameters, plain, strict=True) if strict.bad]
    verdict, reason = _verdict(ours, single, first, worst)
    return Judged(cell, verdict, reason, ours, losses, first, parameters,
                  () if noise is None else rounding, noise)  # fmt: skip


def _verdict(ours: Ran, single: Ran, first: int | None, worst: Gap | None) -> tuple[Verdict, str]:
    steps = len(single.losses)
    if len(ours.losses) != steps or any(len(r.steps) != steps for r in ours.records):
        taken = ", ".join(str(len(record.steps)) for record in ours.records)
        return Verdict.DIFFERS, f"Steps taken: single {steps}, ranks {taken}."
    if first is not None:
        a, b = single.losses[first - 1], ours.losses[first - 1]
        return Verdict.DIFFERS, (
            f"The loss differs from step {first} on: there single has {a:.8g}, and the mean over "
            f"the ranks is {b:.8g}."
        )
    if worst is not None and worst.bad:
        return Verdict.DIFFERS, "The losses are equal, parameters are not."
    apart = _between_ranks(ours)
    if apart is not None:
        return Verdict.RANKS_DIFFER, (
            f"Ranks are not alike to the last bit: {apart.name} differs between rank 0 and rank "
            f"{apart.rank} by {apart.size:.1e}."
        )
    return Verdict.EQUAL, ""


def _first_bad(
    losses: Sequence[float], single: Sequence[float], allowed: Tolerance, noise: Noise | None
) -> int | None:
    """The step, from 1, whose loss is the first to be too far off."""
    known = 0.0
    for index, (gap, value) in enumerate(zip(losses, single, strict=False)):
        limit = allowed.loss * max(1.0, abs(value) if abs(value) < float("inf") else 1.0)
        if noise is not None and noise.losses:
            known = max(known, noise.losses[min(index, len(noise.losses) - 1)])
            limit = max(limit, NOISE * known)
        if not gap <= limit:
            return index + 1
    return None


def _worst(ours: Ran, single: Ran, allowed: Tolerance, noise: Noise | None) -> list[Gap]:
    """The largest difference of each parameter on any rank."""
    (one,) = single.parameters
    limits = {name: allowed.parameter * gaps.scale(value) for name, value in one.items()}
    if noise is not None:
        limits = {n: max(v, NOISE * noise.parameters.get(n, 0.0)) for n, v in limits.items()}
    found: dict[str, list[Gap]] = {}
    for rank, mine in enumerate(ours.parameters):
        for name, size in gaps.by_name(mine, one).items():
            found.setdefault(name, []).append(Gap(name, rank, size, limits.get(name, 0.0)))
    return [max(each, key=lambda gap: gap.size) for each in found.values()]


def _between_ranks(ours: Ran) -> Gap | None:
    """Where ranks are furthest apart, if they are."""
    first = ours.parameters[0]
    apart = [
        Gap(name, rank, size, 0.0)
        for rank, mine in enumerate(ours.parameters[1:], start=1)
        for name, size in gaps.by_name(mine, first).items()
        if size
    ]
    return max(apart, key=lambda gap: gap.size, default=None)
