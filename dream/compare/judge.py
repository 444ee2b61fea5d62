"""The law, applied: the parameters of `single`, and ranks alike to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dream.compare.cells import SINGLE, Cell
from dream.compare.outcome import Broken, Finished, Outcome, Skipped

if TYPE_CHECKING:
    from dream.compare.record import Parameters

LIMIT = 1e-6
"""Largest difference of a parameter from `single`."""
MIXED_LIMIT = 1e-5
"""The same where ranks are of two frameworks, whose arithmetic differs in the last bit."""
LOSS_LIMIT = 1e-5
"""The same for an epoch's loss, a float32 mean over all its samples."""
ACCURACY_LIMIT = 0.01
"""Rounding may tip a sample that lies on the border between two classes; not one in a hundred."""


class Verdict(StrEnum):
    ORACLE = "the oracle"
    EQUAL = "equal"
    DIFFERS = "DIFFERS"
    RANKS_DIFFER = "RANKS DIFFER"
    WRONG_FIGURES = "WRONG FIGURES"
    WRONG_PLACE = "WRONG PLACE"
    UNPROVEN = "UNPROVEN"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED OUT"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        return self in (Verdict.ORACLE, Verdict.EQUAL, Verdict.SKIPPED)


@dataclass(frozen=True, slots=True)
class Row:
    """A judged cell.

    reason: why the verdict is not a good one, or why it was skipped; difference: largest of any
    parameter from `single`; speed: in times of `single`.
    """

    cell: Cell
    outcome: Outcome
    verdict: Verdict
    reason: str = ""
    difference: float | None = None
    speed: float | None = None

    @property
    def reduction(self) -> str:
        """What the ranks really took; what was asked for where they did not come so far."""
        if isinstance(self.outcome, Finished) and self.cell.processes > 1:
            return self.outcome.first.reduction
        return self.cell.reduction


def judge(cells: Sequence[tuple[Cell, Outcome]]) -> list[Row]:
    """Every cell against the `single` of its framework, or of its rank 0's."""
    singles = {
        cell.framework: outcome
        for cell, outcome in cells
        if cell.name == SINGLE and isinstance(outcome, Finished)
    }
    return [row(cell, outcome, singles.get(cell.oracle)) for cell, outcome in cells]


def row(cell: Cell, outcome: Outcome, single: Finished | None) -> Row:
    """One cell's verdict. single: of the same framework; None where it did not finish."""
    if isinstance(outcome, Skipped):
        return Row(cell, outcome, Verdict.SKIPPED, f"{outcome.reason} Run: {outcome.install}")
    if isinstance(outcome, Broken):
        verdict = Verdict.TIMED_OUT if outcome.timed_out else Verdict.CRASHED
        return Row(cell, outcome, verdict, outcome.reason)
    if single is None:
        reason = f"{cell.oracle} has no single to be held against."
        return Row(cell, outcome, Verdict.UNPROVEN, reason)
    difference = largest_difference(outcome.parameters[0], single.parameters[0])
    speed = outcome.first.samples_per_second / single.first.samples_per_second
    verdict, reason = _verdict(cell, outcome, single, difference)
    return Row(cell, outcome, verdict, reason, difference, speed)


def limit_of(cell: Cell) -> float:
    return MIXED_LIMIT if cell.kind.mixed else LIMIT


def largest_difference(ours: Parameters, theirs: Parameters) -> float:
    """Of any element of any parameter; nan where one is, infinite where the layouts differ."""
    import numpy as np

    if {n: v.shape for n, v in ours.items()} != {n: v.shape for n, v in theirs.items()}:
        return float("inf")
    gaps = [np.abs(ours[n].astype(np.float64) - theirs[n]).ravel() for n in sorted(ours)]
    return float(np.concatenate(gaps).max(initial=0.0))


def between_frameworks(rows: Sequence[Row]) -> float | None:
    """Largest difference of an epoch's loss between the `single`s of any two frameworks; None
    where fewer than two finished."""
    curves = list(loss_curves(rows).values())
    if len(curves) < 2:
        return None
    return float(max(max(epoch) - min(epoch) for epoch in zip(*curves, strict=True)))


def loss_curves(rows: Sequence[Row]) -> Mapping[str, list[float]]:
    """framework -> the losses of its `single`, one per epoch."""
    return {
        row.cell.framework: row.outcome.first.losses
        for row in rows
        if row.cell.name == SINGLE and isinstance(row.outcome, Finished)
    }


def _verdict(
    cell: Cell, outcome: Finished, single: Finished, difference: float
) -> tuple[Verdict, str]:
    """The first law that is broken, or none. Comparisons are written so that nan breaks them."""
    first = outcome.first
    if (first.world_size, first.replicas) != (cell.processes, cell.replicas):
        return Verdict.WRONG_PLACE, (
            f"Ran as {first.replicas} replicas in {first.world_size} processes, not as "
            f"{cell.replicas} in {cell.processes}."
        )
    if len({record.digest for record in outcome.records}) > 1:
        gap = max(largest_difference(each, outcome.parameters[0]) for each in outcome.parameters)
        return Verdict.RANKS_DIFFER, f"Parameters differ between ranks by up to {gap:.1e}."
    limit = limit_of(cell)
    if not difference <= limit:
        return Verdict.DIFFERS, f"Parameters differ from single by {difference:.1e} > {limit:.0e}."
    for record in outcome.records:
        gap = _curve_gap(record.losses, single.first.losses)
        if not gap <= LOSS_LIMIT:
            return Verdict.WRONG_FIGURES, f"Rank {record.rank}'s losses differ by {gap:.1e}."
        gap = abs(record.accuracy - single.first.accuracy)
        if not gap <= ACCURACY_LIMIT:
            return Verdict.WRONG_FIGURES, f"Rank {record.rank}'s accuracy differs by {gap:.3f}."
    return (Verdict.ORACLE if cell.name == SINGLE else Verdict.EQUAL), ""


def _curve_gap(ours: list[float], theirs: list[float]) -> float:
    if len(ours) != len(theirs):
        return float("inf")
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return float("nan") if any(gap != gap for gap in gaps) else max(gaps, default=0.0)
