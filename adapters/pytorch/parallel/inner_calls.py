"""Calls that a strategy makes of a model's layers, and passes that leave no trace in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from dream._patches import value_set
from dream.adapters.pytorch.private import recomputing

_inside: ContextVar[bool] = ContextVar("dream.split.inside", default=False)


def running_layers() -> AbstractContextManager[None]:
    """Have modules that are called in here, on this thread, count as parts of one that is run."""
    return value_set(_inside, True)


def called_by_user() -> bool:
    """Tell whether a module that is called now is called by the user: not by a strategy, nor again
    by a recomputation during backward."""
    return not _inside.get() and not recomputing()


@contextmanager
def without_side_effects(module: nn.Module) -> Iterator[None]:
    """Leave buffers and torch's generators as they were."""
    before = [buffer.clone() for buffer in module.buffers()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for buffer, value in zip(module.buffers(), before, strict=True):
            buffer.copy_(value)
