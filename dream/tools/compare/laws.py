"""The laws: the parameters of `single`, and ranks alike to the last bit; or where replicas do not
wait for one another, a loss that comes down."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from dream.tools.compare import verified
from dream.tools.compare.cells import SINGLE, Cell
from dream.tools.compare.outcome import Finished
from dream.tools.compare.verdict import CONVERGED, MIXED_LIMIT, SCORE_LIMIT, Verdict
from dream.tools.compare.verified import Measure
from dream.tools.verify.tolerance import LIMIT, LOSS_LIMIT

if TYPE_CHECKING:
    from dream.tools.compare.record import Parameters


def limit_of(cell: Cell, single: Finished | None = None) -> float:
    """How far a parameter may be from `single`."""
    if single is not None and single.ran is not None:
        return verified.limit(single.ran)
    return MIXED_LIMIT if cell.kind.mixed else LIMIT


def largest_difference(ours: Parameters, theirs: Parameters) -> float:
    """Of any element of any parameter; nan where one is, infinite where the layouts differ."""
    import numpy as np

    if {n: v.shape for n, v in ours.items()} != {n: v.shape for n, v in theirs.items()}:
        return float("inf")
    gaps = [np.abs(ours[n].astype(np.float64) - theirs[n]).ravel() for n in sorted(ours)]
    return float(np.concatenate(gaps).max(initial=0.0))


def difference(ours: Finished, single: Finished) -> float:
    """The largest of any parameter; of a script's, relative to large ones."""
    if ours.ran is None or single.ran is None:
        return largest_difference(ours.parameters[0], single.parameters[0])
    return verified.difference(ours.ran, single.ran)


def exact(
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


def converges(cell: Cell, outcome: Finished, _: float, single: Finished) -> tuple[Verdict, str]:
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
