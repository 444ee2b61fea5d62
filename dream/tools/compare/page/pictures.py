"""Draw the pictures: what each shows, and in words how to read it and how it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean
from typing import TYPE_CHECKING, Any

from dream.tools.compare import document
from dream.tools.compare.page import style
from dream.tools.compare.page.style import Shown, finished, singles, split

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
    """Draw a line for every strategy from single on, in every framework."""
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
    """Return whether there is anything to draw of it."""
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
        if not known or row.said["reduction"] in document.UNSEEN:
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


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the page.

    name: of its file; how: what is drawn and how it was measured; of_script: the same where a
    script is compared, if it is another; able: whether there is anything to draw.
    """

    name: str
    title: str
    how: str
    draw: Callable[[Sequence[Shown]], Figure]
    of_script: str = ""
    able: Callable[[Sequence[Shown]], bool] = bool

    def told(self, figures: Mapping[str, Any]) -> str:
        """Say how it is read in a comparison."""
        return (figures["job"] is None and self.of_script) or self.how


_OVERLAP = (
    "Where lines overlap, the rounds tell nothing apart. Hollow: more replicas than cores, which "
    "shows what is right and not what is fast."
)

PICTURES: Sequence[Picture] = (
    Picture(
        "losses",
        "Does every row learn the same?",
        "Top: the mean training loss of every epoch, over all samples of all replicas; lines that "
        "lie on each other are the point. Bottom: how far a row's loss is from single's in the "
        "same framework; what is exactly equal lies on 0.",
        losses,
        "Top: the training loss of every step, the mean over all replicas; lines that lie on each "
        "other are the point. Keras tells the mean since its epoch began. Bottom: how far a row's "
        "loss is from single's; what is exactly equal lies on 0.",
    ),
    Picture(
        "scores",
        "How soon is every row good?",
        "The score on the test set after every epoch, by the seconds since the first step began, "
        "on rank 0 in the first round; what the tests took is left out.",
        scores,
        able=lambda rows: any(row.said["test_scores"] for row in rows),
    ),
    Picture(
        "throughput",
        "How fast is every row?",
        "Samples a second: the dot is the median of the rounds, the line goes from the slowest to "
        f"the fastest round. {_OVERLAP}",
        throughput,
        "Steps a second: the dot is the median of the rounds, the line goes from the slowest to "
        f"the fastest round. {_OVERLAP}",
        able=lambda rows: any(row.speeds for row in rows),
    ),
    Picture(
        "scaling",
        "What do more replicas bring?",
        "The same global batch, shared by more replicas. Efficiency: samples a second, divided by "
        "replicas times those of single; 1 would be perfect. Hollow: more replicas than cores.",
        scaling,
        "The script's own batches, shared by more replicas. Efficiency: steps a second, divided by "
        "replicas times those of single; 1 would be perfect. Hollow: more replicas than cores.",
        able=scales,
    ),
    Picture(
        "split",
        "Where does a step's time go?",
        "Input: the mean time to have the next batch, in a pass after training in which nothing is "
        "trained. Communication: the median time of one all_reduce of as many bytes as the "
        "gradients have, by itself, over the same transport, in the same ranks. The rest of the "
        "measured step is computing and waiting. Where input or communication overlaps with "
        "computing, as frameworks try to have it, more is computed than is drawn. What the parts "
        "of a split model tell each other, or workers their servers, is not read apart. "
        "Start-up is paid once: from the command to the end of the first step.",
        split_time,
        "The mean time from a step to the next, after the warm-up: computing, communication and "
        "input together, which are not read apart in a script that runs unchanged. Start-up is "
        "paid once: from the command to the first step.",
    ),
    Picture(
        "memory",
        "How much memory does a rank take?",
        "Resident memory of the largest rank: at rest once the framework was imported, and what "
        "training added to it at its peak, the data included. Dots: every rank's peak.",
        memory,
    ),
    Picture(
        "bytes",
        "How much do ranks tell each other?",
        "Bytes that a rank sent over its TCP sockets in a step after the warm-up, as the system "
        "counts them, framing and small figures included; the mark is what the formula asks for. "
        "Memory that ranks share is no socket: nothing is counted there.",
        sent,
    ),
)


def drawn(figures: Mapping[str, Any]) -> list[tuple[Picture, Figure]]:
    """Draw every picture for which there are figures; none where no row finished."""
    from matplotlib import rc_context

    rows = finished(figures)
    with rc_context(style.rc()):
        listed = [picture for picture in PICTURES if rows and picture.able(rows)]
        return [(picture, picture.draw(rows)) for picture in listed]
