"""The hook that reduces DDP's buckets in the ring.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from typing import Any, final

import horovod.torch as hvd
import torch
from torch._C._distributed_c10d import GradBucket

from dream.adapters.horovod._travel import begin, carried, wait

Future = torch.futures.Future[torch.Tensor]


@final
class Buckets:
    """DDP's buckets on their way round.

    Each is sent off as soon as it is full; all are waited for with the last one of a backward,
    so that the reduction overlaps with it and is over when it returns. A name says how many are
    away and how long the bucket is: two modules in one backward do not meet, and a name always
    carries the same shape, which the core remembers.
    """

    def __init__(self) -> None:
        self._away: list[tuple[int, torch.Tensor, torch.Tensor, Any]] = []

    def hook(self, state: object, bucket: GradBucket) -> Future:
        """A DDP communication hook: the mean over the ranks."""
        buffer = bucket.buffer()
        travelling = carried(buffer)
        name = f"dream.bucket.{len(self._away)}.{buffer.numel()}"
        handle = begin(hvd.allreduce_async_, travelling, name=name, op=hvd.Average)
        future: Future = torch.futures.Future()
        self._away.append((handle, travelling, buffer, future))
        if bucket.is_last():
            self._land()
        return future

    def _land(self) -> None:
        away, self._away = self._away, []
        for handle, travelling, buffer, future in away:
            wait(handle)
            future.set_result(buffer if travelling is buffer else buffer.copy_(travelling))
