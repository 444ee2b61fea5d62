"""Numbers as JSON has them."""

from __future__ import annotations

from math import isfinite


def finite(value: float | None) -> float | None:
    """None for what is nan or infinite, which JSON has no words for."""
    return value if value is not None and isfinite(value) else None
