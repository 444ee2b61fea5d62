"""A script's row, judged by the law of `dream verify`: equal is what rounding does in so many
steps, and where a row is further off, what `single` is from itself by rounding alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import final

from dream.tools.compare.cells import SINGLE, Cell
from dream.tools.compare.settings import Settings
from dream.tools.verify import gaps, judge, noise, report
from dream.tools.verify.arguments import Asked
from dream.tools.verify.cells import Cell as Verified
from dream.tools.verify.noise import Noise
from dream.tools.verify.runs import Laboratory, Ran
from dream.tools.verify.tolerance import Tolerance

EVERY_STEP = 2**62

Measure = Callable[[Cell, Ran], Noise]
"""How far a script's `single` is from itself, for a cell's number of parts."""


def held(cell: Cell, ours: Ran, single: Ran, measure: Measure | None) -> tuple[str, str]:
    """(verdict, reason), the verdict in the words of `dream verify`. The reason of an equal row
    tells what is equal by rounding alone, if anything."""
    place = Verified(cell.strategy, cell.processes, cell.devices, cell.servers)
    find = None if measure is None else partial(measure, cell, single)
    if cell.name == SINGLE:  # two runs of one program: nothing to sum otherwise
        find = None
    judged = judge.judge(place, ours, single, find)
    said = report.rounded(judged) if judged.good else report.details(judged, ())
    return judged.verdict.value, "\n".join(said)


def difference(ours: Ran, single: Ran) -> float:
    """The largest of any parameter on any rank, relative to the parameter's largest value where
    that is more than 1."""
    (one,) = single.parameters
    return max(
        (
            size / max(1.0, gaps.scale(one[name]) if name in one else 1.0)
            for mine in ours.parameters
            for name, size in gaps.by_name(mine, one).items()
        ),
        default=0.0,
    )


def limit(single: Ran) -> float:
    """What such a difference may be."""
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
                f"{cell}: further from single than rounding usually is; single runs once more, "
                f"each batch summed in {cell.replicas} parts, to see how far it is from itself"
            )
            self._found[key] = noise.measure(self._laboratory(cell), single, cell.replicas)
        return self._found[key]

    def _laboratory(self, cell: Cell) -> Laboratory:
        asked = Asked(self._settings.script, 1, (), EVERY_STEP, self._settings.timeout, None)
        return Laboratory(asked, self._root, {"KERAS_BACKEND": cell.kind.backends[0]})
