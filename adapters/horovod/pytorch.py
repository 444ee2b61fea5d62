"""The ring as a reduction of torch: a communicator, and the hook that reduces DDP's buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import horovod.torch as hvd
import torch
from dream.adapters.horovod._ring import explained, stand_in
from dream.adapters.pytorch.collectives import on_tensors
from dream.adapters.pytorch.hooks import GradientHook, TorchReduction
from horovod.common.exceptions import HorovodInternalError
from torch._C._distributed_c10d import GradBucket

from dream import _objects
from dream._adapter import Op, Plan, Tensor
from dream._errors import ConfigurationError, Unsupported, unknown

_OPS: dict[Op, Any] = {"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max}
_CARRIED = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bool: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
    torch.int16: torch.int32,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
"""A tensor's dtype -> the one it travels in. Half precision is added up in float32."""


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
    carried = _carried(flat)
    _wait(start(carried))
    return carried.to(flat.dtype)


def _carried(flat: torch.Tensor) -> torch.Tensor:
    if flat.dtype not in _CARRIED or flat.device.type != "cpu":
        raise Unsupported(
            "This tensor does not travel in the ring. Received: "
            f"{flat.dtype} on {flat.device}. The ring takes CPU tensors of: "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in _CARRIED)}."
        )
    return flat.to(_CARRIED[flat.dtype])


def _wait(handle: int) -> None:
    try:
        hvd.synchronize(handle)
    except HorovodInternalError as error:
        raise explained(error) from error


class Buckets:
    """DDP's buckets on their way round.

    Each is sent off as soon as it is full; all are waited for with the last one of a backward,
    so that the reduction overlaps with it and is over when it returns.
    """

    def __init__(self) -> None:
        self._away: list[tuple[int, torch.Tensor, torch.Tensor, Any]] = []

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:  # noqa: ARG002
        """A DDP communication hook: the mean over the ranks."""
        buffer = bucket.buffer()
        carried = _carried(buffer)
        name = f"dream.bucket.{len(self._away)}.{buffer.numel()}"
        handle = hvd.allreduce_async_(carried, name=name, op=hvd.Average)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._away.append((handle, carried, buffer, future))
        if bucket.is_last():
            self._land()
        return future

    def _land(self) -> None:
        away, self._away = self._away, []
        for handle, carried, buffer, future in away:
            _wait(handle)
            future.set_result(carried if carried is buffer else buffer.copy_(carried))
