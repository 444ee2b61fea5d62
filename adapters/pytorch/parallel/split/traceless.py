"""A pass through layers to learn something, which they do not notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def traceless(module: nn.Module) -> Iterator[None]:
    """Buffers and torch's generators are afterwards what they were."""
    before = [buffer.clone() for buffer in module.buffers()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for buffer, value in zip(module.buffers(), before, strict=True):
            buffer.copy_(value)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """In evaluation mode inside, and afterwards each part in its own."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
