"""The ring as a reduction of torch: a communicator, and the hook that reduces DDP's buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import horovod.torch as hvd
import torch

from dream import _objects
from dream._adapter import Op, Plan, Tensor
from dream._errors import ConfigurationError, Unsupported, unknown
from dream.adapters.horovod._buckets import Buckets
from dream.adapters.horovod._ring import stand_in
from dream.adapters.horovod._travel import carried, wait
from dream.adapters.pytorch.collectives import on_tensors
from dream.adapters.pytorch.hooks import GradientHook, TorchReduction

_OPS: dict[Op, Any] = {"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max}


def connect(plan: Plan) -> Ring:
    """The communicator of the plan's ranks over the ring."""
    stand_in(hvd, plan.cluster, "torch")
    return Ring()


@final
class Ring(TorchReduction):
    """The ranks of the job, in Horovod's ring."""

    def __init__(self) -> None:
        self._buckets = Buckets()

    @property
    def gradient_hook(self) -> GradientHook:
        return self._buckets.hook

    @property
    def rank(self) -> int:
        return int(hvd.rank())

    @property
    def world_size(self) -> int:
        return int(hvd.size())

    def all_reduce(self, x: Tensor | Sequence[Tensor], op: Op = "mean") -> Any:
        if op not in _OPS:
            raise unknown("op of all_reduce", op, _OPS)
        return on_tensors(x, lambda flat: _all_reduce(flat, op))

    def broadcast(self, x: Tensor | Sequence[Tensor], root: int = 0) -> Any:
        if not 0 <= root < self.world_size:
            raise ConfigurationError(
                f"No such rank to broadcast from. Received: root={root}, world size "
                f"{self.world_size}. Use 0 to {self.world_size - 1}."
            )
        return on_tensors(x, lambda flat: _broadcast(flat, root))

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1), "max")

    def all_gather_object(self, value: object) -> list[Any]:
        return _objects.all_gather(self, value)

    def broadcast_object(self, value: object, root: int = 0) -> Any:
        return _objects.broadcast(self, value, root)

    def close(self) -> None:
        """The ring stays up for what comes later in the process; it ends with it."""


def _all_reduce(flat: torch.Tensor, op: Op) -> torch.Tensor:
    if op == "mean" and not flat.is_floating_point():
        raise Unsupported(
            f"There is no mean of this dtype. Received: {flat.dtype}. Use op='sum', or a floating "
            "point dtype."
        )
    if op == "sum" and flat.dtype == torch.bool:
        raise Unsupported("There is no sum of this dtype. Received: torch.bool. Cast it first.")
    return _through(flat, lambda x: hvd.allreduce_async_(x, name=f"dream.{op}", op=_OPS[op]))


def _broadcast(flat: torch.Tensor, root: int) -> torch.Tensor:
    return _through(flat, lambda x: hvd.broadcast_async_(x, root, name=f"dream.from{root}"))


def _through(flat: torch.Tensor, start: Callable[[torch.Tensor], int]) -> torch.Tensor:
    """What a collective that works in place makes of `flat`, in its own dtype."""
    if flat.numel() == 0:
        return flat
    travelling = carried(flat)
    wait(start(travelling))
    return travelling.to(flat.dtype)
