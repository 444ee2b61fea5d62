"""Starts the ranks of these tests; TensorFlow is imported in them, not beside pytest."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import dream

SECONDS = 240


def call(module: str, name: str, *args: Any, n: int, strategy: str | None = None) -> list[Any]:
    """What `module.name(*args)` gives on each of `n` ranks."""
    return dream.launch(
        _by_name, module, name, args, n=n, framework="tensorflow", strategy=strategy,
        timeout=SECONDS,
    )  # fmt: skip


def _by_name(module: str, name: str, args: tuple[Any, ...]) -> Any:
    import tensorflow  # noqa: F401  (first, so that `--strategy` finds it before any op)

    return getattr(import_module(module), name)(*args)
