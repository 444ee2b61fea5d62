"""Show a measurement: to people as tables and a picture, to programs as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream._errors import ConfigurationError, NotInstalled
from dream.files import sizes
from dream.tools import support, tables
from dream.tools.collectives.figures import Timing, TimingSettings
from dream.tools.machine import Machine
from dream.tools.tables import note, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_WORDS = {"operation", "transport", "algorithm", "by formula"}


def show(
    rows: Sequence[Timing], settings: TimingSettings, machine: Machine, console: Console
) -> None:
    """Print everything on `console`."""
    for framework in dict.fromkeys(row.framework for row in rows):
        console.print(Text(f"{framework}, {settings.n} ranks", style="bold"))
        tables.show(console, _times([row for row in rows if row.framework == framework]), 3)
        console.print()
    algorithms = [row for row in rows if row.is_algorithm]
    if algorithms:
        console.print(Text("Bytes sent in one all_reduce", style="bold"))
        tables.show(console, _bytes(algorithms))
        console.print()
    for sentence in notes(settings, machine):
        note(console, sentence)


def notes(settings: TimingSettings, machine: Machine) -> list[str]:
    """Return what the figures mean, and what they are worth here."""
    said = [
        f"Medians on the slowest rank; rounds in which all take turns: {settings.rounds}. The "
        "ranks compare their calls as they do by default, and every result is a new tensor. Bus "
        "bandwidth: bytes a second times 2(P-1)/P for all_reduce, (P-1)/P for gathers, scatters "
        "and all_to_all, 1 for broadcast "
        "and reduce, as NCCL's tests count; the size is that of the larger side. Memcpy: every "
        "rank copies as many bytes at the same time. GB: 10^9 bytes; KB and MB: 1024 and 1024^2."
    ]
    if settings.algorithms:
        said.append(
            "The algorithms are the textbooks', in Python on send and receive: for their bytes, "
            "not for their speed."
        )
    if settings.n > machine.cores:
        said.append(
            f"{settings.n} ranks share {machine.cores} cores, so they wait for one another's turn: "
            "compare the transports, not this machine with another."
        )
    if machine.busy:
        said.append(f"The machine was busy ({machine.busy}): do not trust the times.")
    return said


def _times(rows: Sequence[Timing]) -> Table:
    shown = table(
        "operation",
        "size",
        "transport",
        "ms",
        "quartiles",
        "bus GB/s",
        "of memcpy",
        words=_WORDS,
        gap=1,
    )
    before = None
    for row in rows:
        if before not in (None, row.operation):
            shown.add_section()
        before = row.operation
        shown.add_row(
            row.operation,
            sizes.show(row.size),
            f"{row.contender} algorithm" if row.is_algorithm else row.contender,
            f"{row.seconds.median * 1e3:.3f}",
            f"{row.seconds.low * 1e3:.3f} to {row.seconds.high * 1e3:.3f}",
            f"{row.bus_bandwidth / 1e9:.3g}",
            _percent(row.against_memcpy),
        )
    return shown


def _bytes(rows: Sequence[Timing]) -> Table:
    shown = table(
        "algorithm", "size", "framework", "sent by each rank", "by formula", words=_WORDS, gap=1
    )
    for row in rows:
        shown.add_row(
            row.contender,
            sizes.show(row.size),
            row.framework,
            _each(row.sent or ()),
            _each(row.formula or ()),
        )
    return shown


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share * 100:.2g}%"


def _each(figures: Sequence[float]) -> str:
    """`6,144 x 3`, or every one where they differ."""
    shown = [f"{figure:,.10g}" for figure in figures]
    return f"{shown[0]} x {len(shown)}" if len(set(shown)) == 1 else " / ".join(shown)


Figures = dict[str, object]


def document(rows: Sequence[Timing], settings: TimingSettings, machine: Machine) -> Figures:
    """Return what `--json` writes. Sizes in bytes, times in seconds, bandwidths in bytes a
    second."""
    return {
        "machine": machine.figures,
        "versions": support.versions(),
        "settings": asdict(settings),
        "rows": [_row_figures(row) for row in rows],
    }


def _row_figures(row: Timing) -> Figures:
    figures: Figures = {
        "framework": row.framework,
        "operation": row.operation,
        "size": row.size,
        "algorithm" if row.is_algorithm else "transport": row.contender,
        "seconds": row.seconds.median,
        "seconds_quartiles": [row.seconds.low, row.seconds.high],
        "calls_per_reading": row.calls,
        "bus_bandwidth": row.bus_bandwidth,
        "memcpy_bandwidth": row.memcpy,
        "against_memcpy": row.against_memcpy,
    }
    if row.is_algorithm:
        figures |= {"sent_by_rank": row.sent, "sent_by_formula": row.formula}
    return figures


KINDS = (".png", ".svg", ".pdf")
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""M. Okabe and K. Ito's, which colour-blind people tell apart; the marks differ as well."""
_MARKS = "os^Dv<>PX"
_COLUMNS = 3


def check_picture(path: Path) -> None:
    """Refuse what could not be drawn, before anything is measured."""
    if path.suffix not in KINDS:
        raise ConfigurationError(
            f"The picture format is taken from the file extension. Received: --plot {path}. Use "
            f"one of: {', '.join(KINDS)}."
        )
    if find_spec("matplotlib") is None:
        raise NotInstalled(
            f"matplotlib is not installed. Needed by: --plot {path}. "
            "Run: pip install 'dream-systems[plot]'"
        )


def draw(rows: Sequence[Timing], settings: TimingSettings, path: Path) -> None:
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
    panel: Axes, operation: str, rows: Sequence[Timing], styles: dict[str, dict[str, Any]]
) -> None:
    for name, style in styles.items():
        mine = sorted((row for row in rows if _line_name(row) == name), key=lambda row: row.size)
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


def _styles(rows: Sequence[Timing]) -> dict[str, dict[str, Any]]:
    """By a line's name; algorithms are dotted."""
    found = {_line_name(row): row.is_algorithm for row in rows}
    return {
        name: {
            "color": _COLOURS[index % len(_COLOURS)],
            "marker": _MARKS[index % len(_MARKS)],
            "linestyle": ":" if algorithm else "-",
        }
        for index, (name, algorithm) in enumerate(found.items())
    }


def _line_name(row: Timing) -> str:
    how = f"{row.contender} algorithm in Python" if row.is_algorithm else row.contender
    return f"{row.framework}, {how}"


def _entries(figure: Any) -> tuple[list[Any], list[str]]:
    """Of all panels, each once."""
    found = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found[label] = handle
    return list(found.values()), list(found)
