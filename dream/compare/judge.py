"""The law, applied: the parameters of `single`, and ranks alike to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from dream import _placing
from dream.compare.cells import SINGLE, Cell
from dream.compare.outcome import Broken, Finished, Outcome, Skipped
from dream.compare.spread import Spread

if TYPE_CHECKING:
    from dream.compare.record import Parameters
    from dream.compare.verified import Measure

LIMIT = 1e-6
"""Largest difference of a parameter from `single`."""
MIXED_LIMIT = 1e-5
"""The same where ranks are of two frameworks, whose arithmetic differs in the last bit."""
LOSS_LIMIT = 1e-5
"""The same for an epoch's loss, a float32 mean over all its samples."""
CONVERGED = 0.5
"""How far the loss must come down at least, where nothing is meant to equal `single`: the part of
the way that single's own goes, from its first figure to its last."""
SCORE_LIMIT = 0.01
"""Rounding may tip a sample that lies on the border between two classes; not one in a hundred."""

POINT = 0.01
"""How much less than the score of `single` at its end is as good."""


class Verdict(StrEnum):
    ORACLE = "the oracle"
    EQUAL = "equal"
    LEARNS = "learns"
    DIFFERS = "DIFFERS"
    RANKS_DIFFER = "RANKS DIFFER"
    WRONG_FIGURES = "WRONG FIGURES"
    WRONG_PLACE = "WRONG PLACE"
    LEARNS_NOT = "DOES NOT LEARN"
    UNPROVEN = "UNPROVEN"
    IMPOSSIBLE = "CANNOT RUN"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED OUT"
    REFUSED = "refused"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        return self in _GOOD


_GOOD = (Verdict.ORACLE, Verdict.EQUAL, Verdict.LEARNS, Verdict.SKIPPED, Verdict.REFUSED)


@dataclass(frozen=True, slots=True)
class Row:
    """A judged cell.

    reason: why the verdict is not a good one, or why it was skipped; difference: largest of any
    parameter from `single` in any round; speed: in times of `single`, by the medians; apart:
    whether that is more than the rounds of each differ from one another; limit: of the difference.
    seconds: to the score of `single`, less a point, infinite where it was not reached; None where
    there is no score. kept: of a row with a slow worker, its speed in
    times of the same row without.
    """

    cell: Cell
    outcome: Outcome
    verdict: Verdict
    reason: str = ""
    difference: float | None = None
    speed: float | None = None
    apart: bool = False
    limit: float = LIMIT
    seconds: Spread | None = None
    kept: float | None = None

    @property
    def reduction(self) -> str:
        """What the ranks really took; what was asked for where they did not come so far."""
        if isinstance(self.outcome, Finished) and self.cell.processes > 1:
            return self.outcome.first.reduction
        return self.cell.reduction


def judge(cells: Sequence[tuple[Cell, Outcome]], rounding: Measure | None = None) -> list[Row]:
    """Every cell against the `single` of its framework, or of its rank 0's. rounding: measures how
    far a script's single is from itself, where a row is further off than rounding usually is."""
    singles = {
        cell.framework: outcome
        for cell, outcome in cells
        if cell.name == SINGLE and isinstance(outcome, Finished)
    }
    rows = [row(cell, outcome, singles.get(cell.oracle), rounding) for cell, outcome in cells]
    speeds = {each.cell: each.speed for each in rows}
    return [replace(each, kept=_kept(each, speeds)) for each in rows]


def _kept(slowed: Row, speeds: Mapping[Cell, float | None]) -> float | None:
    if slowed.cell.slow is None or slowed.speed is None:
        return None
    usual = speeds.get(replace(slowed.cell, slow=None))
    return slowed.speed / usual if usual else None


def row(
    cell: Cell, outcome: Outcome, single: Finished | None, rounding: Measure | None = None
) -> Row:
    """One cell's verdict. single: of the same framework; None where it did not finish."""
    if isinstance(outcome, Skipped):
        return Row(cell, outcome, Verdict.SKIPPED, f"{outcome.reason} Run: {outcome.install}")
    if isinstance(outcome, Broken) and outcome.refused:
        return Row(cell, outcome, Verdict.REFUSED, outcome.refused)
    if isinstance(outcome, Broken) and outcome.impossible:
        return Row(cell, outcome, Verdict.IMPOSSIBLE, outcome.impossible)
    if isinstance(outcome, Broken):
        verdict = Verdict.TIMED_OUT if outcome.timed_out else Verdict.CRASHED
        return Row(cell, outcome, verdict, outcome.reason)
    if single is None:
        reason = f"{cell.oracle} has no single to be held against."
        return Row(cell, outcome, Verdict.UNPROVEN, reason)
    differences = [_difference(each, single) for each in outcome.rounds]
    exact = partial(_exact, rounding=rounding)
    law = _converges if _placing.departs(cell.strategy) else exact
    verdict, reason = _first_bad(
        [law(cell, *each, single) for each in zip(outcome.rounds, differences, strict=True)]
    )
    speed = outcome.speed.median / single.speed.median
    apart = not outcome.speed.overlaps(single.speed)
    score = single.first.score
    return Row(
        cell, outcome, verdict, reason, _largest(differences), speed, apart, limit_of(cell, single),
        None if score is None else outcome.over_rounds(lambda each: each.seconds_to(score - POINT)),
    )  # fmt: skip


def _first_bad(judged: Sequence[tuple[Verdict, str]]) -> tuple[Verdict, str]:
    """Of the rounds, in which every law holds or the cell is not good."""
    for number, (verdict, reason) in enumerate(judged, 1):
        if not verdict.good:
            return verdict, f"In round {number}: {reason}" if len(judged) > 1 else reason
    return judged[0]


def _largest(figures: Sequence[float]) -> float:
    """nan where one is."""
    return next((each for each in figures if each != each), max(figures))


def limit_of(cell: Cell, single: Finished | None = None) -> float:
    """How far a parameter may be from `single`."""
    if single is not None and single.ran is not None:
        from dream.compare import verified

        return verified.limit(single.ran)
    return MIXED_LIMIT if cell.kind.mixed else LIMIT


def largest_difference(ours: Parameters, theirs: Parameters) -> float:
    """Of any element of any parameter; nan where one is, infinite where the layouts differ."""
    import numpy as np

    if {n: v.shape for n, v in ours.items()} != {n: v.shape for n, v in theirs.items()}:
        return float("inf")
    gaps = [np.abs(ours[n].astype(np.float64) - theirs[n]).ravel() for n in sorted(ours)]
    return float(np.concatenate(gaps).max(initial=0.0))


def _difference(ours: Finished, single: Finished) -> float:
    if ours.ran is None or single.ran is None:
        return largest_difference(ours.parameters[0], single.parameters[0])
    from dream.compare import verified

    return verified.difference(ours.ran, single.ran)


def between_frameworks(rows: Sequence[Row]) -> float | None:
    """Largest difference of an epoch's loss between the `single`s of any two frameworks; None
    where fewer than two finished, or a script took other numbers of steps in them."""
    curves = list(loss_curves(rows).values())
    if len(curves) < 2 or len({len(curve) for curve in curves}) > 1:
        return None
    return float(max(max(epoch) - min(epoch) for epoch in zip(*curves, strict=True)))


def loss_curves(rows: Sequence[Row]) -> Mapping[str, list[float]]:
    """framework -> the losses of its `single`, one per epoch."""
    return {
        row.cell.framework: row.outcome.first.losses
        for row in rows
        if row.cell.name == SINGLE and isinstance(row.outcome, Finished)
    }


def _exact(
    cell: Cell,
    outcome: Finished,
    difference: float,
    single: Finished,
    rounding: Measure | None = None,
) -> tuple[Verdict, str]:
    """The first law that is broken, or none. Comparisons are written so that nan breaks them."""
    first = outcome.first
    replicas = first.replicas if cell.splits else cell.replicas
    if (first.world_size, first.replicas) != (cell.processes, replicas):
        return Verdict.WRONG_PLACE, (
            f"Ran as {first.replicas} replicas in {first.world_size} processes, not as "
            f"{cell.replicas} in {cell.processes}."
        )
    if outcome.ran is not None and single.ran is not None:
        from dream.compare import verified

        said, reason = verified.held(cell, outcome.ran, single.ran, rounding)
        verdict = Verdict(said)
        alone = cell.name == SINGLE and verdict.good
        return (Verdict.ORACLE if alone else verdict), reason
    if len({record.digest for record in outcome.records}) > 1:
        gap = max(largest_difference(each, outcome.parameters[0]) for each in outcome.parameters)
        return Verdict.RANKS_DIFFER, f"Parameters differ between ranks by up to {gap:.1e}."
    limit = limit_of(cell, single)
    if not difference <= limit:
        return Verdict.DIFFERS, f"Parameters differ from single by {difference:.1e} > {limit:.0e}."
    for record in outcome.records:
        gap = _curve_gap(record.losses, single.first.losses)
        if not gap <= LOSS_LIMIT:
            return Verdict.WRONG_FIGURES, f"Rank {record.rank}'s losses differ by {gap:.1e}."
        if record.score is None or single.first.score is None:
            continue
        gap = abs(record.score - single.first.score)
        if not gap <= SCORE_LIMIT:
            return Verdict.WRONG_FIGURES, f"Rank {record.rank}'s score differs by {gap:.3f}."
    return (Verdict.ORACLE if cell.name == SINGLE else Verdict.EQUAL), ""


def _converges(cell: Cell, outcome: Finished, _: float, single: Finished) -> tuple[Verdict, str]:
    """Of updates that cannot equal single's: how far the loss comes down, from its first tenth to
    its last."""
    if outcome.first.world_size != cell.processes:
        return Verdict.WRONG_PLACE, (
            f"Ran in {outcome.first.world_size} processes, not in {cell.processes}."
        )
    theirs, few = single.first.losses, max(1, len(single.first.losses) // 10)
    start, end = fmean(theirs[:few]), fmean(theirs[-few:])
    last = fmean(outcome.first.losses[-few:])
    if len(theirs) < 2 or not end < start:
        return Verdict.UNPROVEN, "The loss of single does not come down, so nothing can be told."
    came = (start - last) / (start - end)
    if not came >= CONVERGED:
        return Verdict.LEARNS_NOT, (
            f"The loss ends at {last:.4g}, single's at {end:.4g}: {came:.0%} of the way from "
            f"{start:.4g}, and at least {CONVERGED:.0%} is asked for."
        )
    return Verdict.LEARNS, ""


def _curve_gap(ours: list[float], theirs: list[float]) -> float:
    if len(ours) != len(theirs):
        return float("inf")
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return float("nan") if any(gap != gap for gap in gaps) else max(gaps, default=0.0)
