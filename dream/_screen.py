"""Where commands print their tables."""

from __future__ import annotations

from rich.console import Console


def screen(width: int = 160) -> Console:
    """stdout; where it is a file, as wide as the table wants to be."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
