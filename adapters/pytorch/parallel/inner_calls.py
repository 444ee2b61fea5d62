"""Calls of a model's parts: by the user or by a strategy, in which order, in which mode; and passes
that leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

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


def order_of_calls(
    module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[nn.Module]:
    """The parts, as a forward pass without gradients calls them. It leaves no trace: running
    statistics and the generator stay."""
    called: list[nn.Module] = []
    handles = [
        part.register_forward_pre_hook(lambda part, _: called.append(part))
        for part in module.modules()
    ]
    try:
        with evaluating(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
            forward(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return called


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put parts in evaluation mode inside, and back in their own afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def called() -> Iterator[list[nn.Module]]:
    """The modules that are called while the block lasts, in the order of their first calls."""
    modules: list[nn.Module] = []
    seen: set[int] = set()

    def note(module: nn.Module, _: Any) -> None:
        if id(module) not in seen:
            seen.add(id(module))
            modules.append(module)

    handle = register_module_forward_pre_hook(note)
    try:
        yield modules
    finally:
        handle.remove()


@contextmanager
def whole_attention() -> Iterator[None]:
    """Without the fast path, which passes by the modules inside."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
