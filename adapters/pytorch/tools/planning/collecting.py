"""What a collective is given, read off the operation that torch dispatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import distributed
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.utils._pytree import tree_leaves

from dream.tools.plan.sketch import Phase

_NAMES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "send": "send",
    "recv_": "receive",
    "broadcast_": "broadcast",
    "shard_dim_alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
}
"""dream's names of torch's."""


@final
@dataclass(frozen=True, slots=True)
class Collected:
    """size: bytes of the larger side; ranks: of the group."""

    operation: str
    size: int
    ranks: tuple[int, ...]
    phase: Phase


def is_collective(func: Any) -> bool:
    return func in collective_ops


def collected(func: Any, args: tuple[Any, ...], out: Any, phase: Phase) -> Iterator[Collected]:
    """Nothing for what only waits."""
    if func in sync_ops:
        return
    name = func._overloadpacket.__name__
    group = CollectiveOp.get_process_group(func, args)
    ranks = tuple(distributed.get_process_group_ranks(group))
    yield Collected(_NAMES.get(name, name), _larger(args, out), ranks, phase)


def _larger(args: tuple[Any, ...], out: Any) -> int:
    """Of what goes in and what comes out; lists of tensors are one side."""
    sides = [*(arg for arg in args if _tensors(arg)), out]
    return max(sum(x.numel() * x.element_size() for x in _tensors(side)) for side in sides)


def _tensors(side: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(side) if isinstance(x, torch.Tensor)]
