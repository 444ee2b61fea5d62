"""The modules that a batch goes through, in order, and in which mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


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
