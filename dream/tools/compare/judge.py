"""Judge every row by its law.

A row has the parameters of `single`, and its ranks are alike to the last bit; or where replicas do
not wait for one another, a loss that comes down. A script's row is judged as `dream verify` does:
equal is what rounding does in so many steps, and where a row is further off, what `single` is from
itself by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, final

from dream.tools import placing
from dream.tools.compare.cells import SINGLE, Cell
from dream.tools.compare.outcome import Finished, Outcome, RoundSpread, Skipped
from dream.tools.compare.settings import Settings
from dream.tools.verify import judge as verify_judge
from dream.tools.verify import report as verify_report
from dream.tools.verify.judge import LIMIT, LOSS_LIMIT, Noise, Tolerance
from dream.tools.verify.runs import Broken, Ran, ScriptRunner, VerifyRequest

if TYPE_CHECKING:
    from dream.tools.compare.outcome import Parameters


MIXED_LIMIT = 1e-5
"""Largest difference of a parameter from `single` where ranks are of two frameworks, whose
arithmetic differs in the last bit; else it is that of `dream verify`."""
CONVERGED = 0.5
"""How far the loss must come down at least, where nothing is meant to equal `single`: the part of
the way that single's own goes, from its first figure to its last."""
SCORE_LIMIT = 0.01
"""Rounding may tip a sample that lies on the border between two classes; not one in a hundred."""
POINT = 0.01
"""How much less than the score of `single` at its end is as good."""


class RowVerdict(StrEnum):
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


_GOOD = (
    RowVerdict.ORACLE,
    RowVerdict.EQUAL,
    RowVerdict.LEARNS,
    RowVerdict.SKIPPED,
    RowVerdict.REFUSED,
)
EVERY_STEP = 2**62
Measure = Callable[[Cell, Ran], Noise]
"""How far a script's `single` is from itself, for a cell's number of parts."""


def held(cell: Cell, ours: Ran, single: Ran, measure: Measure | None) -> tuple[str, str]:
    """(verdict, reason), the verdict in the words of `dream verify`. The reason of an equal row
    tells what is equal by rounding alone, if anything."""
    find = None if measure is None else partial(measure, cell, single)
    if cell.name == SINGLE:  # two runs of one program: nothing to sum otherwise
        find = None
    judged = verify_judge.judge(cell.placement, ours, single, find)
    said = verify_report.rounded(judged) if judged.good else verify_report.details(judged, ())
    return judged.verdict.value, "\n".join(said)


def script_difference(ours: Ran, single: Ran) -> float:
    """Return the largest of any parameter on any rank, relative to the parameter's largest value
    where that is more than 1."""
    (one,) = single.parameters
    return max(
        (
            size / max(1.0, verify_judge.scale(one[name]) if name in one else 1.0)
            for mine in ours.parameters
            for name, size in verify_judge.by_name(mine, one).items()
        ),
        default=0.0,
    )


def script_limit(single: Ran) -> float:
    """Return what such a difference may be."""
    return Tolerance(single.first.dtype, single.updates).parameter


@final
class Rounding:
    """Measures it, once for a framework and a number of parts. root: for what ranks leave."""

    def __init__(self, settings: Settings, root: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._settings = settings
        self._root = root
        self._found: dict[tuple[str, int], Noise] = {}

    def __call__(self, cell: Cell, single: Ran) -> Noise:
        key = (cell.oracle, cell.replicas)
        if key not in self._found:
            self._say(
                f"{cell}: differs from single by more than usual rounding; single runs again with "
                f"each batch summed in {cell.replicas} parts, to measure its own rounding"
            )
            self._found[key] = verify_judge.measure_noise(
                self._scripts(cell), single, cell.replicas
            )
        return self._found[key]

    def _scripts(self, cell: Cell) -> ScriptRunner:
        asked = VerifyRequest(
            self._settings.script, 1, (), EVERY_STEP, self._settings.timeout, None
        )
        return ScriptRunner(asked, self._root, {"KERAS_BACKEND": cell.kind.backends[0]})


def limit_of(cell: Cell, single: Finished | None = None) -> float:
    """Return how far a parameter may be from `single`."""
    if single is not None and single.ran is not None:
        return script_limit(single.ran)
    return MIXED_LIMIT if cell.kind.mixed else LIMIT


def largest_difference(ours: Parameters, theirs: Parameters) -> float:
    """Of any element of any parameter; nan where one is, infinite where the layouts differ."""
    import numpy as np

    if {n: v.shape for n, v in ours.items()} != {n: v.shape for n, v in theirs.items()}:
        return float("inf")
    gaps = [np.abs(ours[n].astype(np.float64) - theirs[n]).ravel() for n in sorted(ours)]
    return float(np.concatenate(gaps).max(initial=0.0))


def difference(ours: Finished, single: Finished) -> float:
    """Return the largest of any parameter; of a script's, relative to large ones."""
    if ours.ran is None or single.ran is None:
        return largest_difference(ours.parameters[0], single.parameters[0])
    return script_difference(ours.ran, single.ran)


def exact(
    cell: Cell,
    outcome: Finished,
    difference: float,
    single: Finished,
    rounding: Measure | None = None,
) -> tuple[RowVerdict, str]:
    """Return the first law that is broken, or none. Comparisons are written so that nan breaks
    them."""
    first = outcome.first
    replicas = first.replicas if cell.splits else cell.replicas
    if (first.world_size, first.replicas) != (cell.processes, replicas):
        return RowVerdict.WRONG_PLACE, (
            f"Ran as {first.replicas} replicas in {first.world_size} processes, not as "
            f"{cell.replicas} in {cell.processes}."
        )
    if outcome.ran is not None and single.ran is not None:
        said, reason = held(cell, outcome.ran, single.ran, rounding)
        verdict = RowVerdict(said)
        alone = cell.name == SINGLE and verdict.good
        return (RowVerdict.ORACLE if alone else verdict), reason
    if len({record.digest for record in outcome.records}) > 1:
        gap = max(largest_difference(each, outcome.parameters[0]) for each in outcome.parameters)
        return RowVerdict.RANKS_DIFFER, f"Parameters differ between ranks by up to {gap:.1e}."
    limit = limit_of(cell, single)
    if not difference <= limit:
        return (
            RowVerdict.DIFFERS,
            f"Parameters differ from single by {difference:.1e} > {limit:.0e}.",
        )
    for record in outcome.records:
        gap = _curve_gap(record.losses, single.first.losses)
        if not gap <= LOSS_LIMIT:
            return RowVerdict.WRONG_FIGURES, f"Rank {record.rank}'s losses differ by {gap:.1e}."
        if record.score is None or single.first.score is None:
            continue
        gap = abs(record.score - single.first.score)
        if not gap <= SCORE_LIMIT:
            return RowVerdict.WRONG_FIGURES, f"Rank {record.rank}'s score differs by {gap:.3f}."
    return (RowVerdict.ORACLE if cell.name == SINGLE else RowVerdict.EQUAL), ""


def converges(cell: Cell, outcome: Finished, _: float, single: Finished) -> tuple[RowVerdict, str]:
    """Of updates that cannot equal single's: how far the loss comes down, from its first tenth to
    its last."""
    if outcome.first.world_size != cell.processes:
        return RowVerdict.WRONG_PLACE, (
            f"Ran in {outcome.first.world_size} processes, not in {cell.processes}."
        )
    theirs, few = single.first.losses, max(1, len(single.first.losses) // 10)
    start, end = fmean(theirs[:few]), fmean(theirs[-few:])
    last = fmean(outcome.first.losses[-few:])
    if len(theirs) < 2 or not end < start:
        return RowVerdict.UNPROVEN, "The loss of single does not come down, so nothing can be told."
    came = (start - last) / (start - end)
    if not came >= CONVERGED:
        return RowVerdict.LEARNS_NOT, (
            f"The loss ends at {last:.4g}, single's at {end:.4g}: {came:.0%} of the way from "
            f"{start:.4g}, and at least {CONVERGED:.0%} is asked for."
        )
    return RowVerdict.LEARNS, ""


def _curve_gap(ours: list[float], theirs: list[float]) -> float:
    if len(ours) != len(theirs):
        return float("inf")
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return float("nan") if any(gap != gap for gap in gaps) else max(gaps, default=0.0)


@dataclass(frozen=True, slots=True)
class JudgedCell:
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
    verdict: RowVerdict
    reason: str = ""
    difference: float | None = None
    speed: float | None = None
    apart: bool = False
    limit: float = LIMIT
    seconds: RoundSpread | None = None
    kept: float | None = None

    @property
    def reduction(self) -> str:
        """What the ranks really took; what was asked for where they did not come so far."""
        if isinstance(self.outcome, Finished) and self.cell.processes > 1:
            return self.outcome.first.reduction
        return self.cell.reduction


def judge(
    cells: Sequence[tuple[Cell, Outcome]], rounding: Measure | None = None
) -> list[JudgedCell]:
    """Judge every cell by the `single` of its framework, or of its rank 0's. rounding:
    measures how far a script's single is from itself, where a row is further off than rounding
    usually is."""
    singles = {
        cell.framework: outcome
        for cell, outcome in cells
        if cell.name == SINGLE and isinstance(outcome, Finished)
    }
    rows = [row(cell, outcome, singles.get(cell.oracle), rounding) for cell, outcome in cells]
    speeds = {each.cell: each.speed for each in rows}
    return [replace(each, kept=_kept(each, speeds)) for each in rows]


def _kept(slowed: JudgedCell, speeds: Mapping[Cell, float | None]) -> float | None:
    if slowed.cell.slow is None or slowed.speed is None:
        return None
    usual = speeds.get(replace(slowed.cell, slow=None))
    return slowed.speed / usual if usual else None


def row(
    cell: Cell, outcome: Outcome, single: Finished | None, rounding: Measure | None = None
) -> JudgedCell:
    """One cell's verdict. single: of the same framework; None where it did not finish."""
    if isinstance(outcome, Skipped):
        return JudgedCell(
            cell, outcome, RowVerdict.SKIPPED, f"{outcome.reason} Run: {outcome.install}"
        )
    if isinstance(outcome, Broken) and outcome.refused:
        return JudgedCell(cell, outcome, RowVerdict.REFUSED, outcome.refused)
    if isinstance(outcome, Broken) and outcome.impossible:
        return JudgedCell(cell, outcome, RowVerdict.IMPOSSIBLE, outcome.impossible)
    if isinstance(outcome, Broken):
        verdict = RowVerdict.TIMED_OUT if outcome.timed_out else RowVerdict.CRASHED
        return JudgedCell(cell, outcome, verdict, outcome.reason)
    if single is None:
        reason = f"{cell.oracle} has no single to be held against."
        return JudgedCell(cell, outcome, RowVerdict.UNPROVEN, reason)
    differences = [difference(each, single) for each in outcome.rounds]
    law = converges if placing.departs(cell.strategy) else partial(exact, rounding=rounding)
    verdict, reason = _first_bad(
        [law(cell, *each, single) for each in zip(outcome.rounds, differences, strict=True)]
    )
    speed = outcome.speed.median / single.speed.median
    apart = not outcome.speed.overlaps(single.speed)
    score = single.first.score
    return JudgedCell(
        cell, outcome, verdict, reason, _largest(differences), speed, apart, limit_of(cell, single),
        None if score is None else outcome.over_rounds(lambda each: each.seconds_to(score - POINT)),
    )  # fmt: skip


def _first_bad(judged: Sequence[tuple[RowVerdict, str]]) -> tuple[RowVerdict, str]:
    """Of the rounds, in which every law holds or the cell is not good."""
    for number, (verdict, reason) in enumerate(judged, 1):
        if not verdict.good:
            return verdict, f"In round {number}: {reason}" if len(judged) > 1 else reason
    return judged[0]


def between_frameworks(rows: Sequence[JudgedCell]) -> float | None:
    """Largest difference of an epoch's loss between the `single`s of any two frameworks; None
    where fewer than two finished, or a script took other numbers of steps in them."""
    curves = list(loss_curves(rows).values())
    if len(curves) < 2 or len({len(curve) for curve in curves}) > 1:
        return None
    return float(max(max(epoch) - min(epoch) for epoch in zip(*curves, strict=True)))


def loss_curves(rows: Sequence[JudgedCell]) -> Mapping[str, list[float]]:
    """framework -> the losses of its `single`, one per epoch."""
    return {
        row.cell.framework: row.outcome.first.losses
        for row in rows
        if row.cell.name == SINGLE and isinstance(row.outcome, Finished)
    }


def _largest(figures: Sequence[float]) -> float:
    """nan where one is."""
    return next((each for each in figures if each != each), max(figures))
