"""A picture: bus bandwidth by size, a panel for each operation, a line for each transport."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from dream._errors import ConfigurationError, NotInstalled
from dream.tools.collectives import sizes
from dream.tools.collectives.figures import Row
from dream.tools.collectives.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = (".png", ".svg", ".pdf")
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""M. Okabe and K. Ito's, which colour-blind people tell apart; the marks differ as well."""
_MARKS = "os^Dv<>PX"
_COLUMNS = 3


def check(path: Path) -> None:
    """Refuse what could not be drawn, before anything is measured."""
    if path.suffix not in KINDS:
        raise ConfigurationError(
            f"A picture's kind is known by its ending. Received: --plot {path}. Use one of: "
            f"{', '.join(KINDS)}."
        )
    if find_spec("matplotlib") is None:
        raise NotInstalled(
            f"matplotlib is not installed. Needed by: --plot {path}. "
            "Run: pip install 'dream-systems[plot]'"
        )


def draw(rows: Sequence[Row], settings: Settings, path: Path) -> None:
    """Write the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    operations = list(dict.fromkeys(row.operation for row in rows))
    columns = min(_COLUMNS, len(operations))
    lines = -(-len(operations) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.6 * lines + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    styles = _styles(rows)
    for operation, panel in zip(operations, panels, strict=False):
        _panel(panel, operation, [row for row in rows if row.operation == operation], styles)
    for panel in panels[len(operations) :]:
        panel.set_axis_off()
    figure.suptitle(f"How fast {settings.n} ranks on this machine exchange tensors")
    figure.legend(*_entries(figure), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)


def _panel(
    panel: Axes, operation: str, rows: Sequence[Row], styles: dict[str, dict[str, Any]]
) -> None:
    for name, style in styles.items():
        mine = sorted((row for row in rows if _name(row) == name), key=lambda row: row.size)
        if mine:
            speeds = [row.bus_bandwidth / 1e9 for row in mine]
            panel.plot([row.size for row in mine], speeds, label=name, **style)
    ticks = sorted({row.size for row in rows})
    copied = [median(row.memcpy / 1e9 for row in rows if row.size == size) for size in ticks]
    panel.plot(ticks, copied, label="every rank copies memory", color="0.5", linestyle="--")
    panel.set(xscale="log", yscale="log", title=operation)
    panel.set_xlabel("size of the tensor")
    panel.set_ylabel("bus bandwidth, GB a second")
    panel.set_xticks(ticks, [sizes.show(size) for size in ticks])
    panel.minorticks_off()
    panel.grid(visible=True, color="0.9")


def _styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By a line's name; algorithms are dotted."""
    found = {_name(row): row.is_algorithm for row in rows}
    return {
        name: {
            "color": _COLOURS[index % len(_COLOURS)],
            "marker": _MARKS[index % len(_MARKS)],
            "linestyle": ":" if algorithm else "-",
        }
        for index, (name, algorithm) in enumerate(found.items())
    }


def _name(row: Row) -> str:
    how = f"{row.contender} algorithm in Python" if row.is_algorithm else row.contender
    return f"{row.framework}, {how}"


def _entries(figure: Any) -> tuple[list[Any], list[str]]:
    """Of all panels, each once."""
    found = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found[label] = handle
    return list(found.values()), list(found)
