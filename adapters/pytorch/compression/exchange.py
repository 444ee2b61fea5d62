"""Gradients on any wire: their mean, or what an exchange makes of them.

Annotations are evaluated here, since DDP compares a hook's with its own classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch

from dream.adapters.pytorch.loss.calls import LossMessage
from dream.adapters.pytorch.private import GradBucket
from dream.collectives import Wire


class GradientExchange(ABC):
    """Makes a bucket's gradients one. All ranks come out with the same bits."""

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
_HALF = (torch.float16, torch.bfloat16)


@final
class Exchanged:
    """Gradients made one over the ranks, as they come: DDP's buckets on any wire, or any.

    exchange: None for their mean, which is also made of what it does not take (a loss that rides
    along). Half precision is added up in float32.
    """

    def __init__(self, exchange: GradientExchange | None, wire: Wire, world_size: int) -> None:
        self._exchange, self._wire, self._world_size = exchange, wire, world_size

    def hook(self, state: object, bucket: GradBucket) -> Future:
        """A DDP communication hook: (state, bucket) -> a future of the bucket's buffer."""
        if self._exchange is None:
            self._average(bucket.buffer())
        else:
            self.write_global(bucket.parameters(), bucket.gradients())
        future: Future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def write_global(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Write over each rank's gradients those that all ranks step on."""
        taken: list[tuple[torch.Tensor, torch.Tensor]] = []
        left: list[torch.Tensor] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            alone = isinstance(
                parameter, LossMessage
            )  # figures beside the gradients, sent as they are
            if self._exchange is not None and not alone and self._exchange.takes(gradient):
                taken.append((parameter, gradient))
            else:
                left.append(gradient)
        if taken and self._exchange is not None:
            self._exchange(*zip(*taken, strict=True))
        if left:
            wide = torch.float64 if left[0].dtype == torch.float64 else torch.float32
            flat = torch.cat([gradient.reshape(-1).to(wide) for gradient in left])
            write(self._average(flat), left)

    def _average(self, flat: torch.Tensor) -> torch.Tensor:
        (total,) = self._wire.all_reduce([flat.float() if flat.dtype in _HALF else flat], "sum")
        return flat.copy_(total.div_(self._world_size))


def write(flat: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    """Write the flat values over the gradients, one after the other."""
    parts = flat.split([g.numel() for g in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
