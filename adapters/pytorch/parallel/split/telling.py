"""The loss, which the last stage knows, told to the other ranks of a pipeline."""

from __future__ import annotations

from typing import final

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from dream.adapters.pytorch.errors import peers_may_fail

_TAG = 1  # the schedules' own messages have 0


@final
class Telling:
    """Begun before the schedule runs, so that nobody waits for a number at its end."""

    def __init__(self, group: ProcessGroup, teller: int, device: torch.device) -> None:
        self._group, self._teller, self._device = group, teller, device
        self._tag = 0 if device.type == "cuda" else _TAG  # NCCL has no tags, but an order
        self._away: list[distributed.Work] = []
        self._coming: distributed.Work | None = None
        self._told = self._new()

    def expect(self) -> None:
        """Before the schedule: whoever is told gets ready."""
        with peers_may_fail("a step's end"):
            for work in self._away:
                work.wait()
        self._away = []
        if self._listens and self._device.type != "cuda":
            self._listen()

    def tell(self, loss: torch.Tensor | None) -> torch.Tensor:
        """After the schedule: the teller's loss, shape (), on every rank."""
        if not self._listens:
            assert loss is not None
            self._told = loss.to(torch.float64)
            others = [rank for rank in range(self._group.size()) if rank != self._teller]
            self._away = [self._send(rank) for rank in others]
            return self._told
        if self._coming is None:
            self._listen()
        assert self._coming is not None
        with peers_may_fail("the loss of a step"):
            self._coming.wait()
        self._coming = None
        return self._told

    @property
    def _listens(self) -> bool:
        return self._group.rank() != self._teller

    def _new(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._device)

    def _listen(self) -> None:
        self._told = self._new()
        self._coming = distributed.irecv(
            self._told, group=self._group, group_src=self._teller, tag=self._tag
        )

    def _send(self, rank: int) -> distributed.Work:
        work = distributed.isend(self._told, group=self._group, group_dst=rank, tag=self._tag)
        assert work is not None
        return work
