"""Where commands print their tables."""

from __future__ import annotations

from math import isfinite

from rich.console import Console


def screen(width: int = 160) -> Console:
    """stdout; where it is a file, as wide as the table wants to be."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def finite(value: float | None) -> float | None:
    """None for what is nan or infinite, which JSON has no words for."""
    return value if value is not None and isfinite(value) else None
