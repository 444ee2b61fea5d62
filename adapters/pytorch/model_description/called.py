"""In which order a batch goes through a module's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


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
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            forward(*args, **kwargs)
    finally:
        for part, mode in training.items():
            part.training = mode
        for handle in handles:
            handle.remove()
    return called
