"""Passes of the explicit step through a pipeline, and its loss, which the last stage knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast, final

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from dream._adapter import Loss, Weight
from dream.adapters.pytorch import private
from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.loss.calls import Bearer, TrainingCall
from dream.adapters.pytorch.loss.reading import say
from dream.adapters.pytorch.loss.terms import Term, terms_of
from dream.adapters.pytorch.parallel.pipeline.microbatch_run import (
    Weigh,
    nothing_of,
    part_of,
    rows_of,
)
from dream.adapters.pytorch.parallel.pipeline.model import PipelineModel
from dream.adapters.pytorch.parallel.pipeline.stages import StageParameters
from dream.adapters.pytorch.parallel.sharding.gradients import average
from dream.adapters.pytorch.randomness.calls import CallDraws
from dream.adapters.pytorch.train_step import Batch, MicroPart, Passes
from dream.adapters.pytorch.update.scaling import Scaling
from dream.adapters.pytorch.update.weigh import count_of
from dream.collectives import Communicator
from dream.data.partition import Share, split
from dream.pipeline.division import Microbatches

_NOBODY = cast(Bearer, None)
"""Nothing is sent with a microbatch's backward."""


def by_hand(weights: Sequence[float]) -> Weigh:
    """Weigh means over things that the user counts; over none of them it is nan."""

    def weigh(loss: torch.Tensor, output: Any, index: int) -> torch.Tensor:
        return loss * weights[index] if weights[index] else nothing_of(output)

    return weigh


@final
class GraphWeights:
    """Weights of one batch's graphs on the last stage. Where things are counted (tokens, weights of
    classes), how many there are on all ranks is known once the last microbatch is through: until
    then each sample counts for one, and when the gradients are averaged they are divided by
    `counted`.

    share: of the batch. said: what has been said of losses.
    """

    def __init__(
        self, parts: Microbatches, share: Share, said: set[str], *, strict: bool = False
    ) -> None:
        self._parts, self._share, self._said, self._strict = parts, share, said, strict
        self._each = share.parts / share.total
        self.counted = 0.0

    def __call__(self, loss: torch.Tensor, output: Any, index: int) -> torch.Tensor:
        real = self._parts.real(index)
        call = TrainingCall(_NOBODY, Share(real, self._share.total, self._share.parts), ())
        call.mark(output)
        if loss.grad_fn is None:
            return loss * (real * self._each)
        terms = terms_of(loss, [call])
        alike = {id(term.count) for term in terms if term.kind == "count"}
        if len(alike) == 1 and all(term.kind == "count" for term in terms):
            count = float(terms[0].count or 0.0) * self._each
            self.counted += count
            return loss * count if count else nothing_of(output)  # the mean over nothing is nan
        if alike:
            for term in terms:
                if term.kind == "count":
                    term.kind, term.unknown = "mean", "several denominators in microbatches"
        say(terms, self._said, strict=self._strict)
        factors = [self._factor(term, real) for term in terms]
        if len({*factors}) == 1:
            return loss * factors[0]
        for term, factor in zip(terms, factors, strict=True):
            term.node.register_prehook(_times(factor))
        return loss

    def _factor(self, term: Term, real: int) -> float:
        return float(self._share.parts) if term.kind == "sum" else real * self._each


def _times(factor: float) -> Callable[[Any], Any]:
    def hook(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if g is None else g * factor for g in gradients)

    return hook


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

    def share(self, loss: torch.Tensor | None, counted: float = 0.0) -> torch.Tensor:
        """Return the last stage's loss and what it counted, shape (2,), on every rank, after the
        schedule."""
        if not self._receives:
            assert loss is not None
            self._told = self._new()
            self._told[0], self._told[1] = loss, counted
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
        return torch.zeros(2, dtype=torch.float64, device=self._device)

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

    weight: counts the things that a loss is the mean over; None goes by the loss's graph. data:
    the ranks that hold the same stages. strict: raise where that is not understood.
    """

    def __init__(
        self,
        pipeline: PipelineModel,
        parts: StageParameters,
        loss: Loss,
        weight: Weight | None,
        data: Communicator,
        scaling: Scaling | None,
        draws: CallDraws,
        *,
        strict: bool,
    ) -> None:
        self._draws, self._strict = draws, strict
        self._said: set[str] = set()
        self._pipeline, self._parts, self._loss = pipeline, parts, loss
        self._weight, self._data, self._scaling = weight, data, scaling
        settings = pipeline.settings
        self._broadcast = LossBroadcast(settings.group, pipeline.last, settings.device)
        self._value = torch.zeros(2, dtype=torch.float64, device=settings.device)

    def run(self, batch: Batch, weight: Any, *, first: bool, last: bool) -> None:
        if first:
            self._value = torch.zeros_like(self._value)
        if (weigh := self._weights(batch, weight)) is not None:
            scaled = nullcontext() if self._scaling is None else self._scaling.scaled()
            with scaled, self._draws.alone(self._pipeline.model, "stages and microbatches"):
                self._value = self._value + self._round(batch, weigh)
        if last:
            self._value = average(self._parts.parameters, self._value, self._data)
            self._divide()
            if self._scaling is not None:
                self._scaling.renote()

    def told(self) -> torch.Tensor:
        return self._value[0].to(torch.get_default_dtype())

    def _divide(self) -> None:
        """Make means over counted things of what was averaged as if each sample were one."""
        counted = float(self._value[1])
        if counted not in (0.0, 1.0):
            gradients = [p.grad for p in self._parts.parameters if p.grad is not None]
            if gradients:
                private.foreach_mul_(gradients, 1.0 / counted)
            self._value = self._value / counted

    def _round(self, batch: Batch, weigh: Weigh) -> torch.Tensor:
        inputs, target = split(batch)
        pipeline, scale = self._pipeline, 1.0 if self._scaling is None else self._scaling.own
        self._broadcast.expect()
        samples = pipeline.parts(rows_of(batch))
        run = pipeline.train(samples, inputs, target, self._loss, weigh, scale)
        if not pipeline.has_last:
            return self._broadcast.share(None)
        counted = weigh.counted if isinstance(weigh, GraphWeights) else 0.0
        return self._broadcast.share(run.mean_loss, counted)

    def _weights(self, batch: Batch, weight: Any) -> Weigh | None:
        """Choose what the microbatches' losses count for; None where there is nothing to count."""
        if isinstance(weight, MicroPart):
            rows = rows_of(batch)
            share = weight.share or Share(rows, rows, 1)
            if not rows:
                return None
            parts = self._pipeline.parts(rows)
            return GraphWeights(parts, share, self._said, strict=self._strict)
        counts = self._counts(batch)
        total = sum(counts)
        return by_hand([weight * count / total for count in counts]) if total else None

    def _counts(self, batch: Batch) -> list[float]:
        """Count the things that the loss of each microbatch is the mean over, as the user does."""
        samples = rows_of(batch)
        if samples == 0:
            return []
        parts = self._pipeline.parts(samples)
        assert self._weight is not None
        return [
            count_of(self._weight(*(part_of(parts, value, index) for value in batch)))
            if parts.real(index)
            else 0.0
            for index in range(parts.count)
        ]
