"""Samples a second, by row and by replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dream.tools.compare.page import style
from dream.tools.compare.page.shown import Shown, singles

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def throughput(rows: Sequence[Shown]) -> Figure:
    figure, panel = style.figure(style.bars(rows))
    for place, row in enumerate(rows):
        look = style.colour(row.framework)
        if not row.speeds:  # too few steps
            continue
        panel.plot([min(row.speeds), max(row.speeds)], [place, place], color=look, linewidth=3)
        panel.plot(
            row.speed, place, "o", color=look, markersize=7, markeredgewidth=1.5,
            markerfacecolor="none" if row.said["correctness_only"] else look,
        )  # fmt: skip
    style.name_rows(panel, rows)
    panel.set_xlabel(rows[0].unit)
    style.from_zero(panel, "x", [speed for row in rows for speed in row.speeds])
    style.thousands(panel.xaxis)
    panel.locator_params(axis="x", nbins=4)
    style.grid(panel, "x")
    return figure


def scaling(rows: Sequence[Shown]) -> Figure:
    """A line for every strategy from single on, in every framework."""
    lines = _lines(rows)
    names = style.strategies(rows)
    one_framework = style.is_one(rows)
    figure, (left, right) = style.figure(3.6, ncols=2)
    for line in lines.values():
        one = line[0].speed
        counts = [row.replicas for row in line]
        look = style.line(line[-1], names, one=one_framework)
        left.plot(counts, [row.speed for row in line], **look)
        right.plot(counts, [row.speed / (row.replicas * one) for row in line], **look)
        for row in line:
            if row.said["correctness_only"]:
                hollow = {"markerfacecolor": "none", "color": look["color"], "markersize": 11}
                left.plot(row.replicas, row.speed, "o", **hollow)
                right.plot(row.replicas, row.speed / (row.replicas * one), "o", **hollow)
    counts = sorted({row.replicas for row in rows})
    speeds = [(row.speed, row.speed / (row.replicas * line[0].speed)) for line in lines.values()
              for row in line]  # fmt: skip
    style.from_zero(left, "y", [speed for speed, _ in speeds])
    style.from_zero(right, "y", [1.0, *(efficiency for _, efficiency in speeds)])
    for panel, what in (
        (left, rows[0].unit),
        (right, "efficiency"),
    ):
        panel.set(title=what, xlabel="replicas")
        panel.set_xticks(counts)
        style.grid(panel)
    right.axhline(1.0, color=style.INK, linewidth=0.8, linestyle=":")
    style.thousands(left.yaxis)
    style.legend(figure, [row for line in lines.values() for row in line[1:]], names)
    return figure


def scales(rows: Sequence[Shown]) -> bool:
    """Whether there is anything to draw of it."""
    return bool(_lines(rows))


def _lines(rows: Sequence[Shown]) -> dict[tuple[str, str], list[Shown]]:
    """(framework, strategy) -> its row of single, then its own by replicas."""
    alone = singles(rows)
    lines: dict[tuple[str, str], list[Shown]] = {}
    for row in sorted(rows, key=lambda row: row.replicas):
        one = alone.get(row.framework)
        if one is not None and one.speed and not row.is_single and not row.said["slow"]:
            lines.setdefault((row.framework, row.strategy), [one]).append(row)
    return lines
