"""A batch on its way through a pipeline: its microbatches, its loss, and a step's passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from dream._errors import ConfigurationError, Unsupported
from dream._stages import Microbatches
from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.parallel._private import tree_leaves, tree_map
from dream.adapters.pytorch.parallel.sharding.gradients import average
from dream.adapters.pytorch.passes import Batch, Passes
from dream.adapters.pytorch.step import check_scalar
from dream.adapters.pytorch.update.scaling import Scaling
from dream.adapters.pytorch.weighing import count_of
from dream.collectives import Communicator
from dream.data.batch import split

if TYPE_CHECKING:  # which run microbatches themselves
    from dream.adapters.pytorch.parallel.pipeline.model import PipelineModel
    from dream.adapters.pytorch.parallel.pipeline.stages import StageParameters

Loss = Callable[[Any, Any], Any]


def rows_of(batch: Any) -> int:
    """Count the samples of a batch: as many in each of its tensors, on every rank alike."""
    rows = {len(x) for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()}
    if len(rows) != 1:
        raise ConfigurationError(
            "A pipeline cuts each batch into microbatches along dim 0. Received: tensors of "
            f"{sorted(rows)} rows in one batch. Give every tensor a row for each sample."
        )
    return rows.pop()


def part_of(parts: Microbatches, value: Any, index: int) -> Any:
    """Return a microbatch's samples."""
    first, stop = parts.span(index)
    return tree_map(lambda x: x[first:stop] if _is_batch(x) else x, value)


@final
class MicrobatchRun:
    """A batch on its way through the stages. Every rank of a pipeline has the whole batch.

    inputs: the model's. target, loss, weights: where it is trained; weights are what the loss of
    each microbatch counts for, some at least for more than nothing. scale: what gradients are
    larger by.
    """

    def __init__(
        self,
        parts: Microbatches,
        inputs: Sequence[Any],
        target: Any = None,
        loss: Loss | None = None,
        weights: Sequence[float] = (),
        scale: float = 1.0,
    ) -> None:
        self.parts = parts
        self._inputs, self._target, self._loss = inputs, target, loss
        self._weights, self._scale = weights, scale
        self._losses: list[torch.Tensor] = []
        self._outputs: list[Any] = []

    def inputs(self, index: int) -> list[Any]:
        """Return the inputs of a microbatch, padded to its rows with samples of the batch."""
        return [self._padded(value, index) for value in self._inputs]

    def finish(self, index: int, output: Any) -> torch.Tensor:
        """Return what the last stage makes of a microbatch: its part of the loss, to start
        backward from; without a loss, the output is kept."""
        if self._loss is None:
            self._outputs.append(self._cut(output, index))
            return torch.zeros(())
        weight = self._weights[index]
        if weight == 0.0:  # the mean over nothing is nan
            return _nothing(output)
        target = part_of(self.parts, self._target, index)
        part = (
            _refuse_elsewhere(check_scalar(self._loss(self._cut(output, index), target))) * weight
        )
        self._losses.append(part.detach().clone())
        return part if self._scale == 1.0 else part * self._scale

    @property
    def mean_loss(self) -> torch.Tensor:
        """Return the microbatches' losses, each times what it counts for, added up: shape (). On
        the last stage."""
        return torch.stack(self._losses).sum()

    @property
    def output(self) -> Any:
        """Return the model's output for the whole batch. On the last stage."""
        return _joined(self._outputs)

    def _padded(self, value: Any, index: int) -> Any:
        missing = self.parts.rows - self.parts.real(index)
        part = part_of(self.parts, value, index)
        if missing == 0:
            return part

        def pad(whole: Any, real: Any) -> Any:
            if not _is_batch(whole):
                return whole
            return torch.cat([real, whole[:1].expand(missing, *whole.shape[1:])])

        return tree_map(pad, value, part)

    def _cut(self, output: Any, index: int) -> Any:
        """Drop the padding from an output."""
        real, rows = self.parts.real(index), self.parts.rows
        if real == rows:
            return output

        def cut(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if x.dim() == 0 or len(x) != rows:
                raise Unsupported(
                    "The rows that fill up a short microbatch must be dropped from its output. "
                    f"Received: an output of shape {tuple(x.shape)} for {rows} rows. Choose a "
                    f"batch size that {self.parts.count} microbatches divide, and drop_last=True."
                )
            return x[:real]

        return tree_map(cut, output)


def _is_batch(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() > 0


def _refuse_elsewhere(loss: torch.Tensor) -> torch.Tensor:
    if loss.is_meta:
        raise Unsupported(
            "A pipeline's loss is computed on the last stage, which has no parameters of the "
            "others. Received: a loss that was taken of some. Give the optimizer weight_decay= "
            "for a penalty on them, or use 'sharded' or 'mirrored'."
        )
    return loss


def _nothing(output: Any) -> torch.Tensor:
    """Make a loss of 0 that all gradients come from."""
    leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.stack([(leaf * 0.0).sum() for leaf in leaves]).sum()


def _joined(outputs: list[Any]) -> Any:
    """Join outputs of successive microbatches as one."""
    return tree_map(
        lambda *parts: torch.cat(parts) if isinstance(parts[0], torch.Tensor) else parts[0],
        *outputs,
    )


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
