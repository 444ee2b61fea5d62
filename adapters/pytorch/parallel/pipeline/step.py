"""Passes of the explicit step through a pipeline, and its loss, which the last stage knows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.loss import count_of
from dream.adapters.pytorch.parallel.pipeline.microbatch_run import part_of, rows_of
from dream.adapters.pytorch.parallel.pipeline.model import PipelineModel
from dream.adapters.pytorch.parallel.pipeline.stages import StageParameters
from dream.adapters.pytorch.parallel.sharding.gradients import average
from dream.adapters.pytorch.train_step import Batch, Passes
from dream.adapters.pytorch.update.scaling import Scaling
from dream.collectives import Communicator
from dream.data.partition import split

_TAG = 1  # the schedules' own messages have 0


@final
class LossBroadcast:
    """Begun before the schedule runs, so that nobody waits for a number at its end."""

    def __init__(self, group: ProcessGroup, last: int, device: torch.device) -> None:
        self._group, self._last, self._device = group, last, device
        self._tag = 0 if device.type == "cuda" else _TAG  # NCCL has no tags, but an order
        self._sent: list[distributed.Work] = []
        self._receiving: distributed.Work | None = None
        self._told = self._new()

    def expect(self) -> None:
        """Get ready to receive, before the schedule."""
        with peers_may_fail("a step's end"):
            for work in self._sent:
                work.wait()
        self._sent = []
        if self._receives and self._device.type != "cuda":
            self._receive()

    def share(self, loss: torch.Tensor | None) -> torch.Tensor:
        """Return the last stage's loss, shape (), on every rank, after the schedule."""
        if not self._receives:
            assert loss is not None
            self._told = loss.to(torch.float64)
            others = [rank for rank in range(self._group.size()) if rank != self._last]
            self._sent = [self._send(rank) for rank in others]
            return self._told
        if self._receiving is None:
            self._receive()
        assert self._receiving is not None
        with peers_may_fail("the loss of a step"):
            self._receiving.wait()
        self._receiving = None
        return self._told

    @property
    def _receives(self) -> bool:
        return self._group.rank() != self._last

    def _new(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._device)

    def _receive(self) -> None:
        self._told = self._new()
        self._receiving = distributed.irecv(
            self._told, group=self._group, group_src=self._last, tag=self._tag
        )

    def _send(self, rank: int) -> distributed.Work:
        work = distributed.isend(self._told, group=self._group, group_dst=rank, tag=self._tag)
        assert work is not None
        return work


@final
class PipelinePasses(Passes):
    """Gradients add up over rounds, and become the mean over the copies of the model in the last.

    weight: counts the things that a loss is the mean over; None goes by samples. data: the ranks
    that hold the same stages.
    """

    def __init__(
        self,
        pipeline: PipelineModel,
        parts: StageParameters,
        loss: Callable[..., Any],
        weight: Callable[..., Any] | None,
        data: Communicator,
        scaling: Scaling | None,
    ) -> None:
        self._pipeline, self._parts, self._loss = pipeline, parts, loss
        self._weight, self._data, self._scaling = weight, data, scaling
        settings = pipeline.settings
        self._broadcast = LossBroadcast(settings.group, pipeline.last, settings.device)
        self._value = torch.zeros((), dtype=torch.float64, device=settings.device)

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        if first:
            self._value = torch.zeros_like(self._value)
        counts = self._counts(batch)
        if sum(counts) > 0.0:
            with nullcontext() if self._scaling is None else self._scaling.scaled():
                self._value = self._value + self._round(batch, counts, weight)
        if last:
            self._value = average(self._parts.parameters, self._value, self._data)
            if self._scaling is not None:
                self._scaling.renote()

    def told(self) -> torch.Tensor:
        return self._value.to(torch.get_default_dtype())

    def _round(self, batch: Batch, counts: list[float], weight: float) -> torch.Tensor:
        inputs, target = split(batch)
        pipeline, scale = self._pipeline, 1.0 if self._scaling is None else self._scaling.own
        self._broadcast.expect()
        samples = pipeline.parts(rows_of(batch))
        weights = [weight * count / sum(counts) for count in counts]
        run = pipeline.train(samples, inputs, target, self._loss, weights, scale)
        return self._broadcast.share(run.mean_loss if pipeline.has_last else None)

    def _counts(self, batch: Batch) -> list[float]:
        """Count the things that the loss of each microbatch is the mean over."""
        samples = rows_of(batch)
        if samples == 0:
            return []
        parts = self._pipeline.parts(samples)
        if self._weight is None:
            return [float(parts.real(index)) for index in range(parts.count)]
        return [
            count_of(self._weight(*(part_of(parts, value, index) for value in batch)))
            if parts.real(index)
            else 0.0
            for index in range(parts.count)
        ]
