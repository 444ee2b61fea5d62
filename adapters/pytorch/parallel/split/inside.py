"""Whether a strategy is running a model's layers, so that their calls are not the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_inside: ContextVar[bool] = ContextVar("dream.split.inside", default=False)


@contextmanager
def inside() -> Iterator[None]:
    """Modules that are called in here, on this thread, are parts of one that is run."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def called_by_hand() -> bool:
    """Whether a module that is called now is called by the user: not by a strategy, nor again by
    a recomputation during backward."""
    return not _inside.get() and torch._C._current_graph_task_id() == -1
