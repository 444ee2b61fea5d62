"""What TensorFlow's AutoGraph leaves as it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def as_written(function: F) -> F:
    """The function, marked as AutoGraph marks what it has done with: inside a user's tf.function
    it would otherwise rewrite it, at a price and to no end."""
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function
