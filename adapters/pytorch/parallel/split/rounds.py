"""The explicit step of a pipeline: a round of its schedule for each micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final

import torch

from dream.adapters.pytorch.parallel.split import gradients
from dream.adapters.pytorch.parallel.split.feed import part_of, rows_of
from dream.adapters.pytorch.parallel.split.parts import Parts
from dream.adapters.pytorch.parallel.split.pipeline_model import PipelineModel
from dream.adapters.pytorch.parallel.split.telling import Telling
from dream.adapters.pytorch.passes import Batch, Passes
from dream.adapters.pytorch.update.scaling import Scaling
from dream.adapters.pytorch.weighing import count_of
from dream.collectives import Communicator
from dream.data.partition import split


@final
class Rounds(Passes):
    """Gradients add up over rounds, and become the mean over the copies of the model in the last.

    weight: counts the things that a loss is the mean over; None goes by samples. data: the ranks
    that hold the same stages.
    """

    def __init__(
        self,
        pipeline: PipelineModel,
        parts: Parts,
        loss: Callable[..., Any],
        weight: Callable[..., Any] | None,
        data: Communicator,
        scaling: Scaling | None,
    ) -> None:
        self._pipeline, self._parts, self._loss = pipeline, parts, loss
        self._weight, self._data, self._scaling = weight, data, scaling
        room = pipeline.room
        self._telling = Telling(room.group, pipeline.last, room.device)
        self._value = torch.zeros((), dtype=torch.float64, device=room.device)

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        if first:
            self._value = torch.zeros_like(self._value)
        counts = self._counts(batch)
        if sum(counts) > 0.0:
            with nullcontext() if self._scaling is None else self._scaling.scaled():
                self._value = self._value + self._round(batch, counts, weight)
        if last:
            self._value = gradients.average(self._parts.parameters, self._value, self._data)
            if self._scaling is not None:
                self._scaling.renote()

    def told(self) -> torch.Tensor:
        return self._value.to(torch.get_default_dtype())

    def _round(self, batch: Batch, counts: list[float], weight: float) -> torch.Tensor:
        inputs, target = split(batch)
        pipeline, scale = self._pipeline, 1.0 if self._scaling is None else self._scaling.own
        self._telling.expect()
        samples = pipeline.parts(rows_of(batch))
        weights = [weight * count / sum(counts) for count in counts]
        feed = pipeline.train(samples, inputs, target, self._loss, weights, scale)
        return self._telling.tell(feed.mean_loss if pipeline.has_last else None)

    def _counts(self, batch: Batch) -> list[float]:
        """How many things the loss of each microbatch is the mean over."""
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
