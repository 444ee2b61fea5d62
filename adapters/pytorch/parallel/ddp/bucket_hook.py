"""DDP's buckets on any wire.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from typing import final

import torch
from torch._C._distributed_c10d import GradBucket

from dream.collectives import Wire

Future = torch.futures.Future[torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)


@final
class Buckets:
    """Each bucket is reduced as it comes, and waited for. Half precision is added up in float32."""

    def __init__(self, wire: Wire, world_size: int) -> None:
        self._wire, self._world_size = wire, world_size

    def hook(self, state: object, bucket: GradBucket) -> Future:
        """A DDP communication hook: the mean over the ranks."""
        buffer = bucket.buffer()
        travelling = buffer.float() if buffer.dtype in _HALF else buffer
        (total,) = self._wire.all_reduce([travelling], "sum")
        future: Future = torch.futures.Future()
        future.set_result(buffer.copy_(total.div_(self._world_size)))
        return future
