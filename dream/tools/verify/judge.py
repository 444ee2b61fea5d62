"""Equal to single or not: from which step on, and in which parameter.

In float32, after 20 updates, a parameter may differ by 1e-6 and a loss, which is a sum over many
numbers, by 1e-5; relative where these are larger than 1. Roundings add up, so more updates allow
more, and a coarser dtype allows more by its own rounding.

Where a parameter's gradient is nothing but rounding (attention's key bias, a bias before a
normalisation), Adam makes steps of it, and no order of summation is the right one: there single is
held against itself with each batch summed in as many parts as there are replicas. A model that
looks at a batch as a whole, as BatchNorm does, cannot work on it in parts, but on its samples in
another order, and from parameters that begin one rounding away; one that draws random numbers
beside gives each sample others in another order, and has the latter alone. Ranks' sums round more
than such a run's where a gradient is nothing else, so more is allowed where one rounding has moved
a parameter by a thousand times what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dream.tools.placing import Placement
from dream.tools.record import Change
from dream.tools.verify.runs import Broken, Outcome, Ran, ScriptRunner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dream.tools.record import Arrays


LIMIT = 1e-6
"""Of a parameter, after `UPDATES` in float32."""
LOSS_LIMIT = 1e-5
"""Of a loss, a float32 mean over many samples."""
ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance from 1 to the next number."""
UPDATES = 20
NOISE = 3
"""What single is from itself, so many times, is no difference."""
MADE_OF_ROUNDING, NOISE_THERE = 1000, 20
"""A parameter that one rounding moves by so many times what is allowed is made of it, and what
single is from itself there counts so many times. Seen on two and three ranks: up to 8."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far numbers may be apart.

    updates: that the model took. parameter, loss: of numbers up to 1; of larger ones, relative
    to them.
    """

    dtype: str
    updates: int

    @property
    def _factor(self) -> float:
        return ROUNDING[self.dtype] / ROUNDING["float32"] * max(1.0, self.updates / UPDATES)

    @property
    def parameter(self) -> float:
        return LIMIT * self._factor

    @property
    def loss(self) -> float:
        return LOSS_LIMIT * self._factor

    @property
    def text(self) -> str:
        return (
            f"{self.dtype}, {self.updates} updates: a loss may differ by {self.loss:.1e}, a "
            f"parameter by {self.parameter:.1e} (times its largest value where that is more than 1)"
        )


@dataclass(frozen=True, slots=True)
class ParameterGap:
    """The largest difference of one parameter on one rank, and what is allowed there."""

    name: str
    rank: int
    size: float
    allowed: float

    @property
    def bad(self) -> bool:
        return not self.size <= self.allowed

    @property
    def times(self) -> float:
        """How many times over what is allowed; infinite where nothing is, or it is nan."""
        if not self.bad:
            return self.size / self.allowed if self.allowed else 0.0
        ratio = self.size / self.allowed if self.allowed else float("inf")
        return ratio if ratio == ratio else float("inf")


def largest_difference(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Of any element; infinite where shapes differ, or only one of two is a number. What is nan
    in both is alike."""
    import numpy as np

    if ours.shape != theirs.shape:
        return float("inf")
    if ours.dtype.kind in "iub" and theirs.dtype.kind in "iub":
        return float(np.abs(ours.astype(np.int64) - theirs.astype(np.int64)).max(initial=0))
    wide = np.complex128 if "c" in (ours.dtype.kind, theirs.dtype.kind) else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    with np.errstate(all="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))


def scale(values: NDArray[Any]) -> float:
    """Return the largest value, or 1; 0 for what is no float and must be the same."""
    import numpy as np

    if values.dtype.kind not in "fc":
        return 0.0
    finite = np.abs(values[np.isfinite(values)])
    return max(1.0, float(finite.max(initial=0.0)))


def by_name(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """Return the difference of each array; infinite where only one has it."""
    return {
        name: largest_difference(ours[name], theirs[name])
        if name in ours and name in theirs
        else float("inf")
        for name in dict.fromkeys([*theirs, *ours])
    }


def loss_gaps(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Step by step, as far as both go; nan in both is alike."""
    return [
        0.0 if a == b or (a != a and b != b) else abs(a - b)
        for a, b in zip(ours, theirs, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Noise:
    """How far single is from itself where rounding alone differs.

    losses: by step; parameters: by name. how: what single was told to do otherwise. gap: why it
    could not be measured.
    """

    parts: int
    losses: Sequence[float] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)
    gap: str = ""
    how: str = ""


def measure_noise(scripts: ScriptRunner, single: Ran, parts: int, *changes: Change) -> Noise:
    """changes: those that single was run with.

    Nothing is known where the first loss moves by more than rounding does: then what a sample
    gives depends on which others are worked on with it, or on random numbers.
    """
    in_parts = _noise_of(
        scripts.single(*changes, parts=parts),
        single, Noise(parts, how=f"each batch is summed in {parts} parts"),
    )  # fmt: skip
    if not in_parts.gap:
        return in_parts
    reordered = _noise_of(
        scripts.single(*changes, "reordered", parts=parts),
        single, Noise(parts, how="each batch's samples are in another order"),
    )  # fmt: skip
    nudged = _noise_of(
        scripts.single(*changes, "nudged"),
        single, Noise(parts, how="its parameters begin one rounding away"),
    )  # fmt: skip
    known = [noise for noise in (reordered, nudged) if not noise.gap]
    return _largest(known) if known else in_parts


def _largest(known: Sequence[Noise]) -> Noise:
    """Return what any of these has moved: another order may round alike where ranks do not."""
    return replace(
        known[0],
        losses=[max(gaps) for gaps in zip(*(noise.losses for noise in known), strict=False)],
        parameters={
            name: max(noise.parameters.get(name, 0.0) for noise in known)
            for name in known[0].parameters
        },
        how=" or ".join(noise.how for noise in known),
    )


def _noise_of(ran: Outcome, single: Ran, asked: Noise) -> Noise:
    if isinstance(ran, Broken):
        why = ran.reason.strip().splitlines()[-1]
        return replace(asked, gap=f"in parts, single failed: {why}")
    losses = loss_gaps(ran.losses, single.losses)
    allowed = Tolerance(single.first.dtype, single.updates).loss
    if not losses or not losses[0] <= allowed * max(1.0, abs(single.losses[0])):
        return replace(asked, gap="in parts, single's first loss is another: its model looks at a "
                       "batch as a whole, or draws random numbers")  # fmt: skip
    return replace(
        asked, losses=losses, parameters=by_name(ran.parameters[0], single.parameters[0])
    )


class RunVerdict(StrEnum):
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

    cell: Placement
    verdict: RunVerdict
    reason: str = ""
    outcome: Outcome | None = None
    losses: Sequence[float] = ()
    first_step: int | None = None
    parameters: Sequence[ParameterGap] = ()
    rounding: Sequence[ParameterGap] = ()
    noise: Noise | None = None

    @property
    def good(self) -> bool:
        return self.verdict is RunVerdict.EQUAL

    @property
    def largest(self) -> float | None:
        """The largest difference of any parameter."""
        return max((gap.size for gap in self.parameters), default=None)

    @property
    def worst(self) -> ParameterGap | None:
        return max(self.parameters, key=lambda gap: gap.times, default=None)

    @property
    def ran(self) -> Ran | None:
        return self.outcome if isinstance(self.outcome, Ran) else None


def judge(
    cell: Placement, ours: Outcome, single: Ran, noise: Callable[[], Noise] | None = None
) -> Judged:
    """noise: measures how far single is from itself, where rounding alone may be what differs;
    None to do without."""
    if isinstance(ours, Broken) and ours.told:
        return Judged(cell, RunVerdict.REFUSED, ours.told, ours)
    if isinstance(ours, Broken):
        return Judged(cell, RunVerdict.FAILED, ours.reason, ours)
    place = (ours.first.world_size, ours.first.replicas)
    allowed = Tolerance(single.first.dtype, single.updates)
    judged = _held(cell, ours, single, allowed, None)
    if judged.verdict is RunVerdict.DIFFERS and judged.first_step != 1 and noise is not None:
        found = noise()
        judged = _held(cell, ours, single, allowed, found)
    if judged.good and place[0] != cell.processes:
        said = f"It ran on {place[0]} ranks, not on {cell.processes}."
        return Judged(cell, RunVerdict.WRONG_PLACE, said, ours)
    return judged


def _held(
    cell: Placement, ours: Ran, single: Ran, allowed: Tolerance, noise: Noise | None
) -> Judged:
    losses = loss_gaps(ours.losses, single.losses)
    first = _first_bad(losses, single.losses, allowed, noise)
    plain = _worst(ours, single, allowed, None)
    parameters = _worst(ours, single, allowed, noise)
    worst = max(parameters, key=lambda gap: gap.times, default=None)
    rounding = [gap for gap, strict in zip(parameters, plain, strict=True) if strict.bad]
    verdict, reason = _verdict(ours, single, first, worst)
    return Judged(cell, verdict, reason, ours, losses, first, parameters,
                  () if noise is None else rounding, noise)  # fmt: skip


def _verdict(
    ours: Ran, single: Ran, first: int | None, worst: ParameterGap | None
) -> tuple[RunVerdict, str]:
    steps = len(single.losses)
    if len(ours.losses) != steps or any(len(r.steps) != steps for r in ours.records):
        taken = ", ".join(str(len(record.steps)) for record in ours.records)
        return RunVerdict.DIFFERS, f"Steps taken: single {steps}, ranks {taken}."
    if first is not None:
        a, b = single.losses[first - 1], ours.losses[first - 1]
        return RunVerdict.DIFFERS, (
            f"The loss differs from step {first} on: there single has {a:.8g}, and the mean over "
            f"the ranks is {b:.8g}."
        )
    if worst is not None and worst.bad:
        return RunVerdict.DIFFERS, "The losses are equal, parameters are not."
    apart = _between_ranks(ours)
    if apart is not None:
        return RunVerdict.RANKS_DIFFER, (
            f"Ranks are not alike to the last bit: {apart.name} differs between rank 0 and rank "
            f"{apart.rank} by {apart.size:.1e}."
        )
    return RunVerdict.EQUAL, ""


def _first_bad(
    losses: Sequence[float], single: Sequence[float], allowed: Tolerance, noise: Noise | None
) -> int | None:
    """Return the step, from 1, whose loss is the first to be too far off."""
    known = 0.0
    for index, (gap, value) in enumerate(zip(losses, single, strict=False)):
        limit = allowed.loss * max(1.0, abs(value) if abs(value) < float("inf") else 1.0)
        if noise is not None and noise.losses:
            known = max(known, noise.losses[min(index, len(noise.losses) - 1)])
            limit = max(limit, NOISE * known)
        if not gap <= limit:
            return index + 1
    return None


def _worst(ours: Ran, single: Ran, allowed: Tolerance, noise: Noise | None) -> list[ParameterGap]:
    """Return the largest difference of each parameter on any rank."""
    (one,) = single.parameters
    limits = {name: allowed.parameter * scale(value) for name, value in one.items()}
    if noise is not None:
        limits = {n: _with_noise(v, noise.parameters.get(n, 0.0)) for n, v in limits.items()}
    found: dict[str, list[ParameterGap]] = {}
    for rank, mine in enumerate(ours.parameters):
        for name, size in by_name(mine, one).items():
            found.setdefault(name, []).append(ParameterGap(name, rank, size, limits.get(name, 0.0)))
    return [max(each, key=lambda gap: gap.size) for each in found.values()]


def noise_counts(limit: float, noise: float) -> int:
    """Return how many times what single is from itself is allowed, where limit is without it."""
    return NOISE_THERE if noise > MADE_OF_ROUNDING * limit > 0 else NOISE


def _with_noise(limit: float, noise: float) -> float:
    return max(limit, noise_counts(limit, noise) * noise)


def _between_ranks(ours: Ran) -> ParameterGap | None:
    """Return where ranks are furthest apart, if they are."""
    first = ours.parameters[0]
    apart = [
        ParameterGap(name, rank, size, 0.0)
        for rank, mine in enumerate(ours.parameters[1:], start=1)
        for name, size in by_name(mine, first).items()
        if size
    ]
    return max(apart, key=lambda gap: gap.size, default=None)
