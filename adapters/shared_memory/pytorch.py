"""Shared memory as a wire of torch's CPU tensors, and the hook that reduces DDP's buckets in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from dream._errors import Unsupported
from dream._topology import Cluster
from dream.adapters.pytorch.collectives import GradientHook, TorchWire
from dream.adapters.shared_memory._buckets import Buckets, name_of
from dream.collectives.transport import Combine, Length
from dream.shared_memory import Group, Riders, groups


def connect(place: Cluster, reduction: str) -> TorchWire:
    """The wire of the job's ranks, which share a host."""
    del reduction
    return SharedMemory(place, groups.everybody(place), "all")


@final
class SharedMemory(TorchWire):
    """Some ranks of the job. name: the group's, of no other."""

    def __init__(self, place: Cluster, group: Group, name: str) -> None:
        self._place, self._group, self._name = place, group, name
        self._groups = 0
        self._buckets = Buckets(group)

    @property
    def name(self) -> str:
        return groups.NAME

    @property
    def gradient_hook(self) -> GradientHook:
        return self._buckets.hook

    @property
    def riders(self) -> Riders:
        return self._group.riders

    def all_reduce(self, buffers: list[torch.Tensor], op: Combine) -> list[torch.Tensor]:
        for flat in buffers:
            at = _address(flat)
            self._group.all_reduce(at, at, flat.numel(), name_of(flat.dtype), op)
        return buffers

    def broadcast(self, buffers: list[torch.Tensor], root: int) -> list[torch.Tensor]:
        for flat in buffers:
            self._group.broadcast(_address(flat), flat.numel(), name_of(flat.dtype), root)
        return buffers

    def all_gather(self, buffer: torch.Tensor) -> torch.Tensor:
        size = self._group.size
        whole = buffer.new_empty(size * buffer.numel())
        counts = [buffer.numel()] * size
        self._group.all_gather(_address(buffer), whole.data_ptr(), counts, name_of(buffer.dtype))
        return whole

    def all_to_all(
        self, buffer: torch.Tensor, sends: Sequence[Length], receives: Sequence[Length]
    ) -> torch.Tensor:
        result = buffer.new_empty(sum(receives))
        self._group.all_to_all(
            _address(buffer), result.data_ptr(), sends, receives, name_of(buffer.dtype)
        )
        return result

    def group(self, ranks: Sequence[int]) -> TorchWire | None:
        self._groups += 1
        name = f"{self._name}.{self._groups}"
        group = groups.some(self._place, self._group.ranks, ranks, name)
        return None if group is None else SharedMemory(self._place, group, name)

    def close(self) -> None:
        """The group stays for later blocks; it ends with the process."""


def _address(flat: torch.Tensor) -> int:
    if flat.device.type != "cpu":
        raise Unsupported(
            f"Shared memory carries CPU tensors. Received: one on {flat.device}. Take "
            "reduction='nccl' for GPUs."
        )
    return flat.data_ptr()
