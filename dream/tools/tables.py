"""Print tables and the notes below them, alike for every tool."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text


def screen() -> Console:
    """stdout, as wide as the terminal; where there is none, as COLUMNS says, else 80 characters."""
    return Console()


def finite(value: float | None) -> float | None:
    """None for what is nan or infinite, which JSON has no words for."""
    return value if value is not None and isfinite(value) else None


_WIDTH = 100
"""Characters of a line of prose."""
_ANY_WIDTH = 1000


def table(
    *headers: str, words: Collection[str], folded: Collection[str] = (), gap: int = 2
) -> Table:
    """Return an empty table. words: headers of what is no figure, which stand at the left; folded:
    those that give way on a narrow console. gap: between columns."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0))
    for header in headers:
        made.add_column(
            header,
            justify="left" if header in words else "right",
            no_wrap=header not in folded,
            overflow="fold",
        )
    return made


def show(console: Console, whole: Table, names: int = 1) -> None:
    """Print a table; one that is wider than the console in parts, one below the other, none of
    which cuts a figure. names: the first columns, which say whose row it is in every part."""
    for index, part in enumerate(parts(console, whole, names)):
        if index:
            console.print()
        console.print(part)


def parts(console: Console, whole: Table, names: int = 1) -> list[Table]:
    """Return the table, or as few as hold its columns in their order and fit the console. Where
    not even a column fits beside the names, these are folded."""
    begin, rest = whole.columns[:names], whole.columns[names:]
    held: list[list[Column]] = [[]]
    for column in rest:
        if held[-1] and _width(console, _of(whole, [*begin, *held[-1], column])) > console.width:
            held.append([])
        held[-1].append(column)
    return [whole] if len(held) == 1 else [_of(whole, [*begin, *each]) for each in held]


def _width(console: Console, shown: Table) -> int:
    """Return how wide it is where nothing is folded."""
    return Measurement.get(console, console.options.update(width=_ANY_WIDTH), shown).maximum


def _of(whole: Table, columns: Sequence[Column]) -> Table:
    """Return a table of some of its columns."""
    made = Table(box=whole.box, show_edge=False, pad_edge=False, padding=whole.padding)
    for column in columns:
        made.add_column(
            column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow
        )
    for row, cells in zip(whole.rows, zip(*(c.cells for c in columns), strict=True), strict=True):
        made.add_row(*cells, style=row.style, end_section=row.end_section)
    return made


def note(console: Console, sentence: str, style: str = "dim") -> None:
    """Print a sentence, if there is one, in lines that can be read."""
    if sentence:
        console.print(Text(sentence, style=style), width=min(console.width, _WIDTH))
