"""The hook that reduces DDP's buckets in shared memory.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from typing import Any, final

import torch
from torch._C._distributed_c10d import GradBucket

from dream._errors import Unsupported
from dream.shared_memory import CARRIES, Group

Future = torch.futures.Future[torch.Tensor]
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

    def hook(self, state: Any, bucket: GradBucket) -> Future:
        """A DDP communication hook: the mean over the ranks. state: is told of a backward pass's
        last bucket, and with it of all of them."""
        buffer = bucket.buffer()
        at = buffer.data_ptr()
        self._group.all_reduce(at, at, buffer.numel(), name_of(buffer.dtype), "mean")
        if state is not None and bucket.is_last():
            state.reduced = True
        future: Future = torch.futures.Future()
        future.set_result(buffer)
        return future
