"""Print tables and the notes below them, alike for every tool."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH = 100
"""Characters of a line of prose."""


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


def note(console: Console, sentence: str, style: str = "dim") -> None:
    """Print a sentence, if there is one, in lines that can be read."""
    if sentence:
        console.print(Text(sentence, style=style), width=min(console.width, _WIDTH))
