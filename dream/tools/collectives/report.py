"""What `dream collectives` prints at its end: the tables, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream.tools.collectives import sizes
from dream.tools.collectives.figures import Machine, Row
from dream.tools.collectives.settings import Settings

_WORDS = {"operation", "transport", "algorithm", "by formula"}
_WIDTH = 100


def show(rows: Sequence[Row], settings: Settings, machine: Machine, console: Console) -> None:
    """Print everything on `console`."""
    for framework in dict.fromkeys(row.framework for row in rows):
        console.print(Text(f"{framework}, {settings.n} ranks", style="bold"))
        console.print(_times([row for row in rows if row.framework == framework]))
        console.print()
    algorithms = [row for row in rows if row.is_algorithm]
    if algorithms:
        console.print(Text("Bytes sent in one all_reduce", style="bold"))
        console.print(_bytes(algorithms))
        console.print()
    for sentence in notes(settings, machine):
        console.print(Text(sentence, style="dim"), width=min(console.width, _WIDTH))


def notes(settings: Settings, machine: Machine) -> list[str]:
    """What the figures mean, and what they are worth here."""
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
    if machine.load > machine.cores / 2:
        said.append(f"The machine was busy (load {machine.load:.1f}): do not trust the times.")
    return said


def _times(rows: Sequence[Row]) -> Table:
    table = _empty("operation", "size", "transport", "ms", "quartiles", "bus GB/s", "of memcpy")
    before = None
    for row in rows:
        if before not in (None, row.operation):
            table.add_section()
        before = row.operation
        table.add_row(
            row.operation,
            sizes.show(row.size),
            f"{row.contender} algorithm" if row.is_algorithm else row.contender,
            f"{row.seconds.median * 1e3:.3f}",
            f"{row.seconds.low * 1e3:.3f} to {row.seconds.high * 1e3:.3f}",
            f"{row.bus_bandwidth / 1e9:.3g}",
            _percent(row.against_memcpy),
        )
    return table


def _bytes(rows: Sequence[Row]) -> Table:
    table = _empty("algorithm", "size", "framework", "sent by each rank", "by formula")
    for row in rows:
        table.add_row(
            row.contender,
            sizes.show(row.size),
            row.framework,
            _each(row.sent or ()),
            _each(row.formula or ()),
        )
    return table


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share * 100:.2g}%"


def _each(figures: Sequence[float]) -> str:
    """`6,144 x 3`, or every one where they differ."""
    shown = [f"{figure:,.10g}" for figure in figures]
    return f"{shown[0]} x {len(shown)}" if len(set(shown)) == 1 else " / ".join(shown)


def _empty(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for header in headers:
        table.add_column(header, justify="left" if header in _WORDS else "right", no_wrap=True)
    return table
