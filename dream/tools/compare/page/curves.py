"""Loss curves of all rows, laid over each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from dream.tools.compare.page import style
from dream.tools.compare.page.shown import Shown, singles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST = 1e-8
"""Below, the difference's axis is linear: 0 has a place on it."""
_MARKS = 12
"""On a line of many steps."""


def scores(rows: Sequence[Shown]) -> Figure:
    """On the test set, by the seconds that were trained."""
    names = style.strategies(rows)
    tested = [row for row in rows if row.said["test_scores"]]
    figure, panel = style.figure(4.2)
    for row in tested:
        look = style.line(row, names, one=style.is_one(rows))
        read = [float("nan") if each is None else each for each in row.said["test_scores"]]
        panel.plot(row.said["epoch_seconds"], read, **look)
    panel.set_xlabel("seconds of training")
    panel.set_ylabel("test score")
    panel.set_xlim(left=0)
    style.grid(panel)
    style.legend(figure, tested or rows, names)
    return figure


def losses(rows: Sequence[Shown]) -> Figure:
    names = style.strategies(rows)
    alone = singles(rows)
    figure, (top, bottom) = style.figure(5.4, nrows=2, sharex=True, height_ratios=(3, 2))
    largest = _LEAST
    for row in rows:
        epochs = range(1, len(row.losses) + 1)
        look = style.line(row, names, one=style.is_one(rows))
        look["markevery"] = max(1, len(row.losses) // _MARKS)
        top.plot(epochs, row.losses, **look)
        oracle = alone.get(row.framework)
        if oracle is not None and not row.is_single:
            gaps = [abs(a - b) for a, b in zip(row.losses, oracle.losses, strict=False)]
            bottom.plot(epochs[: len(gaps)], gaps, **look)
            largest = max([largest, *(gap for gap in gaps if isfinite(gap))])
    top.set_ylabel("training loss")
    bottom.set_ylabel("difference\nfrom single")
    bottom.set_xlabel(rows[0].said["losses_by"])
    bottom.set_yscale("symlog", linthresh=_LEAST)
    bottom.set_ylim(0, 3 * largest)
    bottom.locator_params(axis="x", integer=True)
    for panel in (top, bottom):
        style.grid(panel)
    style.legend(figure, rows, names)
    return figure
