"""Starts the ranks of these tests; frameworks are imported in them, not beside pytest."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

import dream

SECONDS = 600


def figures(
    frameworks: str, ranks: int, group: str, strategy: str | None = None
) -> list[dict[str, Any]]:
    """What the cases of a group give on each rank, by name: figures, or an error in words. Asked
    again, they are not run again, not even where the job failed."""
    found = _once(frameworks, ranks, group, strategy)
    if isinstance(found, dream.DreamError):
        raise found
    return found


@cache
def _once(
    frameworks: str, ranks: int, group: str, strategy: str | None
) -> list[dict[str, Any]] | dream.DreamError:
    try:
        return dream.launch(
            _run, group, n=ranks, framework=frameworks, strategy=strategy, timeout=SECONDS
        )
    except dream.DreamError as error:
        return error


def _run(group: str) -> dict[str, Any]:
    side = import_module(f"mixed_{os.environ['DREAM_FRAMEWORK']}")
    found: dict[str, Any] = {}
    for name, case in getattr(side, group.upper()).items():
        try:
            found[name] = case()
        except (dream.DreamError, ValueError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
