"""The laws, applied to every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dream import _placing
from dream.tools.compare.cells import SINGLE, Cell
from dream.tools.compare.laws import converges, difference, exact, limit_of
from dream.tools.compare.outcome import Broken, Finished, Outcome, Skipped
from dream.tools.compare.spread import Spread
from dream.tools.compare.verdict import POINT, Verdict
from dream.tools.compare.verified import Measure
from dream.tools.verify.tolerance import LIMIT


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
    differences = [difference(each, single) for each in outcome.rounds]
    law = converges if _placing.departs(cell.strategy) else partial(exact, rounding=rounding)
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


def _largest(figures: Sequence[float]) -> float:
    """nan where one is."""
    return next((each for each in figures if each != each), max(figures))
