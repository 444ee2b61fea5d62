"""Where commands print their tables."""

from __future__ import annotations

from math import isfinite

from rich.console import Console


def screen() -> Console:
    """stdout, as wide as the terminal; where there is none, as COLUMNS says, else 80 characters."""
    return Console()


def finite(value: float | None) -> float | None:
    """None for what is nan or infinite, which JSON has no words for."""
    return value if value is not None and isfinite(value) else None
