"""Memory that runs out, in truth: a process that has little, and tensors that are large."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

ROW = 1 << 29
"""Bytes that a row asks for."""
LEFT = 3 << 30
"""Bytes that a rank has: those of a few rows."""


class Asks(torch.autograd.Function):
    """Takes memory for each row in one of its passes, and gives it back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, each: int, where: str) -> torch.Tensor:
        ctx.each, ctx.where = each, where
        torch.empty(each * len(x) * (where == "forward"), dtype=torch.uint8)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        torch.empty(ctx.each * len(gradient) * (ctx.where == "backward"), dtype=torch.uint8)
        return gradient, None, None


@contextmanager
def little_memory() -> Iterator[None]:
    """This process has little more than it has taken. (What was freed may be kept by malloc, and
    would count as taken: rows could be had out of it.)"""
    ctypes.CDLL(None).malloc_trim(0)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + LEFT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
