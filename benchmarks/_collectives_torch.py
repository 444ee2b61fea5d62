"""The raw calls of torch's transports, for the benchmark of collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

Calls = dict[str, Callable[[], Any]]


def tensor(elements: int) -> torch.Tensor:
    return torch.zeros(elements)


def raw(transport: str, x: torch.Tensor) -> Calls:
    """Sums over all ranks, as a user of the transport writes them."""
    if transport == "horovod":
        import horovod.torch as hvd

        hvd.init()
        return {
            "in place": lambda: hvd.allreduce_(x, op=hvd.Sum, name="raw"),
            "on a copy": lambda: hvd.allreduce(x, op=hvd.Sum, name="raw"),
        }
    return {"in place": lambda: distributed.all_reduce(x), "on a copy": lambda: _on_a_copy(x)}


def raw_alone(x: torch.Tensor) -> Calls:
    """The same in a group that has rank 0 alone, which waits for nobody. Every rank calls it."""
    group = distributed.new_group([0])
    return {
        "in place": lambda: distributed.all_reduce(x, group=group),
        "on a copy": lambda: _on_a_copy(x, group),
    }


def dream(ranks: Any, x: torch.Tensor) -> Calls:
    return {
        "in place": lambda: ranks.all_reduce(x, "sum", out=x),
        "on a copy": lambda: ranks.all_reduce(x, "sum"),
    }


def _on_a_copy(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    result = x.clone()
    distributed.all_reduce(result, group=group)
    return result
