"""How the pictures look, and the rows that they show.

Colours are ones that colour-blind people tell apart, and that show on white and on black.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Shown:
    """A row that finished. said: its entry in the JSON."""

    said: Mapping[str, Any]

    @property
    def framework(self) -> str:
        return str(self.said["framework"])

    @property
    def strategy(self) -> str:
        return str(self.said["title"])

    @property
    def replicas(self) -> int:
        return int(self.said["replicas"])

    @property
    def is_single(self) -> bool:
        return self.strategy.partition(":")[0] == SINGLE

    @property
    def label(self) -> str:
        """For an axis: `torch mirrored x 2`; long names in short."""
        short = self.strategy.replace("model_parallel:", "").replace(" in 1 process", ", 1 process")
        return f"{self.framework} {short} x {self.replicas}"

    @property
    def speeds(self) -> list[float]:
        """Samples per second, one a round."""
        return [value for value in self.said["samples_per_second_by_round"] if value is not None]

    @property
    def speed(self) -> float:
        return float(self.said["samples_per_second"] or 0.0)

    @property
    def unit(self) -> str:
        """Of speeds."""
        return str(self.said["unit"]).replace("/s", " a second")

    @property
    def losses(self) -> list[float]:
        """What is not a number is left out of a line as a gap."""
        return [float("nan") if each is None else float(each) for each in self.said["losses"]]

    def milliseconds(self, name: str) -> float | None:
        seconds = self.said[name]
        return None if seconds is None else float(seconds) * 1e3


def finished(figures: Mapping[str, Any]) -> list[Shown]:
    """Return the rows that have figures, in the order of the grid."""
    return [Shown(cell) for cell in figures["cells"] if "losses" in cell]


def singles(rows: Sequence[Shown]) -> dict[str, Shown]:
    """By framework."""
    return {row.framework: row for row in rows if row.is_single}


def split(row: Shown) -> dict[str, float]:
    """Milliseconds of a step by what they go to. What is not read apart is in the computing; a
    script's steps are not read apart at all."""
    step = row.milliseconds("step_seconds") or 0.0
    if row.said["losses_by"] == "step":
        return {"the whole step": step}
    talking = row.milliseconds("reducing_seconds") or 0.0
    feeding = row.milliseconds("feeding_seconds") or 0.0
    return {
        "computing, and waiting for one another": max(0.0, step - talking - feeding),
        "communication": talking,
        "input": feeding,
    }


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
    """Return what matplotlib is told while it draws and writes."""
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
    """Make a figure and its panels."""
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
    """Return a framework's colour and a strategy's mark. one: there is one framework, so that
    colours tell strategies too."""
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
    """Return whether all rows are of one framework."""
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
    """Return the height of a picture with a bar for every row, in inches."""
    return 1.1 + 0.27 * len(rows)


def name_rows(panel: Axes, rows: Sequence[Shown]) -> None:
    """A row of the grid on each line of a panel, the first on top."""
    panel.set_yticks(range(len(rows)), [row.label for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
