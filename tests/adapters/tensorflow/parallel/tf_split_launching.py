"""Starts the processes of these tests; TensorFlow is imported in them, not beside pytest."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from launch_scripts import keras_on

import dream

SECONDS = 600


@cache
def found(module: str, name: str, n: int = 1, *args: Any) -> list[dict[str, Any]]:
    """What `module.name(*args)` gives on each of `n` ranks; run once, however often it is asked."""
    return dream.launch(
        _by_name, module, name, args, n=n, framework="tensorflow", timeout=SECONDS,
        env=keras_on("tensorflow"),
    )  # fmt: skip


def _by_name(module: str, name: str, args: tuple[Any, ...]) -> Any:
    return getattr(import_module(module), name)(*args)


def close(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def same(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    """Hold nested lists and dicts of numbers against each other."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        ours, theirs = ([each[key] for key in theirs] for each in (ours, theirs))
    if not isinstance(theirs, (list, tuple)):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        return
    for a, b in zip(ours, theirs, strict=True):
        same(a, b, tolerance)
