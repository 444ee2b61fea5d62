"""Starts the ranks of these tests; TensorFlow is imported in them, not beside pytest."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from launch_scripts import keras_on

import dream

SECONDS = 600


def call(module: str, name: str, *args: Any, n: int, strategy: str | None = None) -> list[Any]:
    """What `module.name(*args)` gives on each of `n` ranks. Asked again, it is not run again,
    not even where it failed."""
    found = _once(module, name, args, n, strategy)
    if isinstance(found, dream.DreamError):
        raise found
    return found


@cache
def _once(
    module: str, name: str, args: tuple[Any, ...], n: int, strategy: str | None
) -> list[Any] | dream.DreamError:
    try:
        return dream.launch(
            _by_name, module, name, args, n=n, framework="tensorflow", strategy=strategy,
            timeout=SECONDS, env=keras_on("tensorflow"),
        )  # fmt: skip
    except dream.DreamError as error:
        return error


def _by_name(module: str, name: str, args: tuple[Any, ...]) -> Any:
    import tensorflow  # noqa: F401  (first, so that `--strategy` finds it before any op)

    return getattr(import_module(module), name)(*args)
