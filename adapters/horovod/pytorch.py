"""The ring as a wire of torch, and the hook that reduces DDP's buckets in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import horovod.torch as hvd
import torch

from dream._topology import Cluster
from dream.adapters.horovod._buckets import Buckets
from dream.adapters.horovod._ring import group_of, stand_in
from dream.adapters.horovod._travel import begin, check_device, wait
from dream.adapters.pytorch.collectives import GradientHook, TorchWire
from dream.collectives.transport import Combine, Length

_OPS: dict[Combine, Any] = {
    "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product
}  # fmt: skip


def connect(place: Cluster, reduction: str) -> TorchWire:
    """The wire of the job's ranks in the ring."""
    del reduction
    stand_in(hvd, place, "torch")
    return Ring(hvd.global_process_set)


@final
class Ring(TorchWire):
    """Some ranks of the job, in Horovod's ring. Names are those that TensorFlow's side takes."""

    def __init__(self, ranks: Any) -> None:
        self._buckets = Buckets()
        self._ranks = ranks
        self._members = list(ranks.ranks or range(hvd.size()))

    @property
    def name(self) -> str:
        return "horovod"

    @property
    def gradient_hook(self) -> GradientHook:
        return self._buckets.hook

    def all_reduce(self, buffers: list[torch.Tensor], op: Combine) -> list[torch.Tensor]:
        return self._in_place(
            buffers,
            lambda index, flat: begin(
                hvd.allreduce_async_,
                flat,
                name=f"dream.{op}.{index}",
                op=_OPS[op],
                process_set=self._ranks,
            ),
        )

    def broadcast(self, buffers: list[torch.Tensor], root: int) -> list[torch.Tensor]:
        source = self._members[root]
        return self._in_place(
            buffers,
            lambda index, flat: begin(
                hvd.broadcast_async_, flat, source, name=f"dream.{index}", process_set=self._ranks
            ),
        )

    def all_gather(self, buffer: torch.Tensor) -> torch.Tensor:
        check_device(buffer)
        if not len(buffer):
            return buffer
        handle = begin(hvd.allgather_async, buffer, name="dream", process_set=self._ranks)
        result: torch.Tensor = wait(handle)
        return result

    def all_to_all(
        self, buffer: torch.Tensor, sends: Sequence[Length], receives: Sequence[Length]
    ) -> torch.Tensor:
        del receives  # the core tells the ranks itself
        check_device(buffer)
        splits = torch.tensor(list(sends), dtype=torch.int32)
        handle = begin(hvd.alltoall_async, buffer, splits, name="dream", process_set=self._ranks)
        result: torch.Tensor = wait(handle)[0]
        return result

    def group(self, ranks: Sequence[int]) -> TorchWire | None:
        chosen = group_of([self._members[rank] for rank in ranks], hvd)
        return None if chosen is None else Ring(chosen)

    def close(self) -> None:
        """The ring stays up for what comes later in the process; it ends with it."""

    @staticmethod
    def _in_place(buffers: list[torch.Tensor], start: Any) -> list[torch.Tensor]:
        for flat in buffers:
            check_device(flat)
        away = [start(index, flat) for index, flat in enumerate(buffers) if len(flat)]
        for handle in away:
            wait(handle)
        return buffers
