"""Gradients through an exchange, on any wire: DDP's buckets, or any.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch

from dream.adapters.pytorch.private import GradBucket
from dream.collectives import Wire


class Exchange(ABC):
    """Of a bucket's gradients. All ranks come out with the same bits."""

    @abstractmethod
    def takes(self, gradient: torch.Tensor) -> bool:
        """Whether this one is worth it; the others are averaged as they are."""

    @abstractmethod
    def __call__(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Write the gradients of all ranks over this rank's. parameters: whose they are, which
        stay the same from step to step."""


Future = torch.futures.Future[torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]


@final
class Exchanged:
    """What the exchange does not take (a loss that rides along) is averaged."""

    def __init__(self, exchange: Exchange, wire: Wire, world_size: int) -> None:
        self._exchange, self._wire, self._world_size = exchange, wire, world_size

    def hook(self, state: object, bucket: GradBucket) -> Future:
        """A DDP communication hook."""
        self.write_global(bucket.parameters(), bucket.gradients())
        future: Future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def write_global(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Over each rank's gradients, those that all ranks step on."""
        taken: list[Pair] = []
        left: list[Pair] = []
        for pair in zip(parameters, gradients, strict=True):
            gradient = pair[1]
            chosen = gradient.dim() > 0 and self._exchange.takes(gradient)
            (taken if chosen else left).append(pair)
        if taken:
            self._exchange(*zip(*taken, strict=True))
        if left:
            self._average([gradient for _, gradient in left])

    def _average(self, gradients: list[torch.Tensor]) -> None:
        wide = torch.float64 if gradients[0].dtype == torch.float64 else torch.float32
        flat = torch.cat([g.reshape(-1).to(wide) for g in gradients])
        (total,) = self._wire.all_reduce([flat], "sum")
        write(total.div_(self._world_size), gradients)


def write(flat: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """The flat values over the gradients, one after the other."""
    parts = flat.split([g.numel() for g in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


_HALF = (torch.float16, torch.bfloat16)


@final
class BucketMean:
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
