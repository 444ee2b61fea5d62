"""How the pictures look: colours that colour-blind people tell apart, and that show on white and
on black."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dream.tools.compare.page.shown import Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK = "#010203"
"""Text and axes; in the page it becomes the page's own colour."""
_COLOURS = {
    "torch": "#D55E00",
    "tensorflow": "#0072B2",
    "keras-torch": "#009E73",
    "torch+tensorflow": "#CC79A7",
    "keras-torch+tensorflow": "#E69F00",
}
"""M. Okabe and K. Ito's; marks and dashes differ as well."""
PARTS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")
_OTHER = "#999999"
_SEVERAL = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#7A7A7A",
)  # fmt: skip
"""The same palette, its yellow and black darkened and lightened to show on white and on black."""
_MARKS = "os^Dv<>PX"
_DASHES: Sequence[Any] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
WIDTH = 4.8
"""Inches: a page's column on a desk, and still to be read when a phone makes it narrower."""


def rc() -> Any:
    """What matplotlib is told while it draws and writes."""
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return dict.fromkeys(names, INK) | {
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.fonttype": "none",
        "figure.constrained_layout.w_pad": 0.08,
        "figure.constrained_layout.h_pad": 0.08,
    }


def figure(height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure and its panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(**options)


def grid(panel: Axes, axis: Any = "both") -> None:
    panel.grid(visible=True, axis=axis, color=INK, alpha=0.15, linewidth=0.8)


def colour(framework: str) -> str:
    return _COLOURS.get(framework, _OTHER)


def line(row: Shown, strategies: Sequence[str], *, one: bool = False) -> dict[str, Any]:
    """A framework's colour and a strategy's mark. one: there is one framework, so that colours tell
    strategies too."""
    index = strategies.index(row.strategy)
    return {
        "color": _SEVERAL[index % len(_SEVERAL)] if one else colour(row.framework),
        "marker": _MARKS[index % len(_MARKS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "markersize": 5,
        "linewidth": 1.4,
    }


def legend(figure: Figure, rows: Sequence[Shown], names: Sequence[str]) -> None:
    """What colours and marks mean, below the panels. names: of all strategies, in order."""
    from matplotlib.lines import Line2D

    one = is_one(rows)
    frameworks = [] if one else dict.fromkeys(row.framework for row in rows)
    entries = [Line2D([], [], color=colour(name), linewidth=3, label=name) for name in frameworks]
    for row in {row.strategy: row for row in rows}.values():
        look = line(row, names, one=one) | ({} if one else {"color": INK})
        entries.append(Line2D([], [], label=row.strategy, **look))
    figure.legend(handles=entries, loc="outside lower center", ncols=2, handlelength=2.6)


def is_one(rows: Sequence[Shown]) -> bool:
    """Whether all rows are of one framework."""
    return len({row.framework for row in rows}) == 1


def from_zero(panel: Axes, axis: str, values: Iterable[float]) -> None:
    """The axis begins at 0 and ends a little behind the largest value, so that no mark is cut."""
    most = max(values, default=0.0)
    getattr(panel, f"set_{axis}lim")(0, 1.08 * most if most > 0 else 1)


def thousands(axis: Axis) -> None:
    """Few ticks, in short: 20k."""
    axis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if abs(x) >= 1000 else f"{x:g}")


def strategies(rows: Sequence[Shown]) -> list[str]:
    return list(dict.fromkeys(row.strategy for row in rows))


def bars(rows: Sequence[Shown]) -> float:
    """The height of a picture with a bar for every row, in inches."""
    return 1.1 + 0.27 * len(rows)


def name_rows(panel: Axes, rows: Sequence[Shown]) -> None:
    """A row of the grid on each line of a panel, the first on top."""
    panel.set_yticks(range(len(rows)), [row.label for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
