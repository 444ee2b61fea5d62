"""The hook that reduces DDP's buckets in shared memory.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

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
class _Reduction(NamedTuple):
    """How one bucket is reduced. at: where it lies; row: in memory of all ranks, if so. done: what
    DDP is told, the same each time: to make one takes as long as fifty calls of Python's."""

    buffer: torch.Tensor
    at: int
    row: Row | None
    run: Callable[[], None]
    done: Future

    def is_of(self, buffer: torch.Tensor) -> bool:
        """Whether it is of this bucket, where it lies now."""
        return self.buffer is buffer and self.at == buffer.data_ptr()


@final
class Buckets:
    """A bucket is reduced where it lies, at once: at memory speed there is little to overlap."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._moves = swap_storages is not None

    def hook(self, state: Any, bucket: GradBucket) -> Future:
        """A DDP communication hook: the mean over the ranks. state: is told of a backward pass's
        last bucket, and with it of all of them; and it keeps how each is reduced."""
        buffer = bucket.buffer()
        kept: dict[int, _Reduction] | None = None if state is None else state.kept
        reduction = None if kept is None else kept.get(bucket.index())
        if reduction is None or not reduction.is_of(buffer):
            reduction = self._reduction(buffer, moves=kept is not None)
            if kept is not None:
                kept[bucket.index()] = reduction
        reduction.run()
        if state is not None and bucket.is_last():
            state.reduced = True
            state.kept = {} if kept is None else kept
        return reduction.done

    def _reduction(self, buffer: torch.Tensor, *, moves: bool) -> _Reduction:
        """moves: to memory of all ranks, in its first backward pass, so that nobody outside of it
        (an array of NumPy's) knows the memory that it leaves; buckets that DDP will make again,
        alike on all ranks, stay."""
        count, name = buffer.numel(), name_of(buffer.dtype)
        moves = moves and self._moves and buffer.nbytes > _LITTLE
        row = self._moved(buffer) if moves else None
        at = buffer.data_ptr()
        if row is None:
            run = partial(self._group.all_reduce, at, at, count, name, "mean")
        else:
            there = self._group.reduce_there
            run = partial(there, row.begin, row.stride, count, name, "mean", everywhere=True)
        done: Future = torch.futures.Future()
        done.set_result(buffer)
        return _Reduction(buffer, at, row, run, done)

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
