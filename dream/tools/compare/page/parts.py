"""What a step is made of: time, memory, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from dream.tools.compare import cost
from dream.tools.compare.page import style
from dream.tools.compare.page.shown import Shown, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MB, _KB = 1e6, 1e3


def split_time(rows: Sequence[Shown]) -> Figure:
    figure, (left, right) = style.figure(
        style.bars(rows) + 0.3, ncols=2, width_ratios=(3, 1), sharey=True
    )
    found = [split(row) for row in rows]
    ends = [0.0] * len(rows)
    for colour, part in zip(style.PARTS, found[0], strict=False):
        values = [each[part] for each in found]
        left.barh(range(len(rows)), values, left=ends, color=colour, height=0.65, label=part)
        ends = [end + value for end, value in zip(ends, values, strict=True)]
    starts = [row.said["start_up_seconds"] or 0.0 for row in rows]
    right.barh(range(len(rows)), starts, color=style.PARTS[3], height=0.65, label="start-up")
    style.name_rows(left, rows)
    left.set_xlabel("ms a step")
    right.set_xlabel("s, once")
    for panel in (left, right):
        style.grid(panel, "x")
    right.tick_params(axis="y", length=0)
    left.locator_params(axis="x", nbins=5)
    right.locator_params(axis="x", nbins=2)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def memory(rows: Sequence[Shown]) -> Figure:
    figure, panel = style.figure(style.bars(rows) + 0.2)
    for place, row in enumerate(rows):
        peaks = [each / _MB for each in row.said["peak_bytes_per_rank"]]
        beyond = [each / _MB for each in row.said["bytes_beyond_import_per_rank"]]
        largest = peaks.index(max(peaks))
        at_rest = peaks[largest] - beyond[largest]
        first = place == 0
        panel.barh(
            place, at_rest, color=style.PARTS[0], height=0.65,
            label="the framework, imported" if first else None,
        )  # fmt: skip
        panel.barh(
            place, beyond[largest], left=at_rest, color=style.PARTS[1], height=0.65,
            label="added by training, at its peak" if first else None,
        )  # fmt: skip
        panel.plot(peaks, [place] * len(peaks), ".", color=style.INK, markersize=5)
    style.name_rows(panel, rows)
    panel.set_xlabel("MB in a rank")
    style.grid(panel, "x")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def sent(rows: Sequence[Shown]) -> Figure:
    talking = [row for row in rows if row.said["processes"] > 1] or list(rows)
    figure, panel = style.figure(style.bars(talking) + 0.2)
    most = max((row.said["sent_bytes_by_formula"] or 0.0 for row in talking), default=0.0)
    for place, row in enumerate(talking):
        known = [value for value in row.said["sent_bytes_per_step_by_rank"] if value is not None]
        formula = row.said["sent_bytes_by_formula"]
        if known:
            panel.barh(
                place, mean(known) / _KB, color=style.colour(row.framework), height=0.65, alpha=0.85
            )
        if not known or row.said["reduction"] in cost.UNSEEN:
            behind = formula / _KB if formula is not None and formula < most / 2 else 0.0
            panel.annotate("  in no socket", (behind, place), va="center", fontsize=8)
        if formula is not None:
            panel.plot(formula / _KB, place, "|", color=style.INK, markersize=13, markeredgewidth=2)
    panel.plot([], [], "|", color=style.INK, markersize=10, markeredgewidth=2, label="formula")
    style.name_rows(panel, talking)
    names = [f"{row.label}, {row.said['reduction'] or 'alone'}" for row in talking]
    panel.set_yticks(range(len(talking)), names)
    panel.set_xlabel("KB a step")
    panel.set_xlim(left=0)
    style.grid(panel, "x")
    figure.legend(loc="outside lower center")
    return figure
