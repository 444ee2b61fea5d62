"""The hook that reduces DDP's buckets in shared memory.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from typing import Any, final

import torch
from torch._C._distributed_c10d import GradBucket

from dream._errors import Unsupported
from dream._log import logger
from dream.adapters.pytorch.private import swap_storages
from dream.shared_memory import CARRIES, Group, Row

Future = torch.futures.Future[torch.Tensor]
_LITTLE = 64 * 1024
"""Bytes of a bucket that stays where it is: two meetings cost more than a copy."""
_NAMES = {getattr(torch, name): name for name in CARRIES}


def name_of(dtype: torch.dtype) -> str:
    """As the core spells it."""
    if dtype not in _NAMES:
        raise Unsupported(
            f"Shared memory does not add up this dtype. Received: {dtype}. Cast it to one of: "
            f"{', '.join(CARRIES)}."
        )
    return _NAMES[dtype]


@final
class Buckets:
    """A bucket is reduced where it lies, at once: at memory speed there is little to overlap."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._moves = swap_storages is not None

    def hook(self, state: Any, bucket: GradBucket) -> Future:
        """A DDP communication hook: the mean over the ranks. state: is told of a backward pass's
        last bucket, and with it of all of them; and it keeps where each lies, `rows`."""
        buffer = bucket.buffer()
        count, name = buffer.numel(), name_of(buffer.dtype)
        row = None if state is None else self._row(buffer, state, bucket.index())
        if row is None:
            at = buffer.data_ptr()
            self._group.all_reduce(at, at, count, name, "mean")
        else:
            self._group.reduce_there(row.begin, row.stride, count, name, "mean", everywhere=True)
        if state is not None and bucket.is_last():
            state.reduced = True
            state.rows = {} if state.rows is None else state.rows
        future: Future = torch.futures.Future()
        future.set_result(buffer)
        return future

    def _row(self, buffer: torch.Tensor, state: Any, index: int) -> Row | None:
        """Where a bucket lies, in memory of all ranks; None where each has its own. It moves in its
        first backward pass, so nobody outside of it (an array of NumPy's) knows the memory that it
        leaves; buckets that DDP will make again, alike on all ranks, stay."""
        rows: dict[int, Row | None] | None = state.rows
        if rows is None or not self._moves or buffer.nbytes <= _LITTLE:
            return None
        row = rows.get(index)
        if row is None or row.own != buffer.data_ptr():
            row = rows[index] = self._moved(buffer)
        return row

    def _moved(self, buffer: torch.Tensor) -> Row | None:
        """A storage moves with all views of it, gradients among them."""
        assert swap_storages is not None
        try:
            row = Row(self._group, buffer.nbytes)
        except Unsupported as error:
            self._moves = False
            logger.info("gradients are copied in and out of the ranks' memory: %s", error)
            return None
        there = torch.frombuffer(
            row.memory, dtype=buffer.dtype, count=buffer.numel(), offset=row.offset
        )
        there.copy_(buffer)
        swap_storages(buffer.untyped_storage(), there.untyped_storage())
        return row
