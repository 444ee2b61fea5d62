"""torch's pipeline schedules over stages cut by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.errors import peer_failed
from dream.adapters.pytorch.parallel.split.feed import Feed


@dataclass(frozen=True, slots=True)
class Shape:
    """What a tensor that passes between stages looks like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, x: torch.Tensor) -> Shape:
        return cls(tuple(x.shape), x.dtype, x.requires_grad)

    def made(self, device: torch.device | str) -> torch.Tensor:
        zeros = torch.zeros(self.shape, dtype=self.dtype, device=device)
        return zeros.requires_grad_(self.requires_grad)


def allows(schedule: str, stages: int, ranks: int) -> Callable[[int], bool]:
    """Which numbers of microbatches a schedule can run."""
    if schedule == "1f1b":
        return lambda count: count >= stages
    if schedule == "interleaved":
        return lambda count: count % max(1, count // ranks) == 0
    return lambda count: count >= 1


@final
class Running(nn.Module):
    """A stage as the schedules call it, once for each microbatch in turn."""

    def __init__(self, graph: nn.Module, *, first: bool, last: bool) -> None:
        super().__init__()
        set_hook(self, None)  # made in the block, but no user's
        self.graph = graph
        self._first, self._last = first, last
        self._feed: Feed | None = None
        self._next = 0

    def begin(self, feed: Feed | None) -> None:
        self._feed, self._next = feed, 0

    def forward(self, *received: torch.Tensor) -> Any:
        assert self._feed is not None
        index, self._next = self._next, self._next + 1
        output = self.graph(*self._feed.inputs(index), *(() if self._first else received))
        return self._feed.finish(index, output) if self._last else output


@final
class Schedule:
    """This rank's stages, ready for batches of one shape.

    graphs: the rank's stages by index. passes: what goes into each stage but the first, then out
    of the last one.
    """

    def __init__(
        self,
        name: str,
        graphs: dict[int, nn.Module],
        passes: Sequence[Sequence[Shape]],
        microbatches: int,
        device: torch.device,
        group: ProcessGroup,
        *,
        trains: bool,
    ) -> None:
        count = len(passes)
        self._stages = {
            index: Running(graph, first=index == 0, last=index == count - 1)
            for index, graph in graphs.items()
        }
        made = [
            PipelineStage(
                stage,
                index,
                count,
                device,
                input_args=_examples(passes[index - 1]) if index else _index(1),
                output_args=_examples(passes[index]),
                group=group,
            )
            for index, stage in self._stages.items()
        ]
        self._schedule = _KINDS[name](made, microbatches, _loss if trains else None)
        self._given = _index(microbatches) if 0 in graphs else None
        self._target = _index(microbatches) if trains and count - 1 in graphs else None

    def run(self, feed: Feed) -> None:
        """All microbatches through this rank's stages, and back where they are trained."""
        for stage in self._stages.values():
            stage.begin(feed)
        given = () if self._given is None else (self._given,)
        try:
            self._schedule.step(*given, target=self._target, return_outputs=False)
        except RuntimeError as error:
            raise _own(error) from error
        finally:
            for stage in self._stages.values():
                stage.begin(None)


def _own(error: RuntimeError) -> BaseException:
    """What the model or the loss raised, out of torch's wrapping; else a peer failed."""
    cause = error.__cause__
    return peer_failed("the pipeline", error) if cause is None else cause


def _index(count: int) -> torch.Tensor:
    """What the schedules cut into microbatches in place of the batch, which the feed cuts."""
    return torch.arange(count)


def _examples(shapes: Sequence[Shape]) -> tuple[torch.Tensor, ...]:
    return tuple(shape.made("meta") for shape in shapes)


def _loss(value: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    del index
    return value


def _one(kind: Any) -> Callable[..., Any]:
    return lambda stages, count, loss: kind(stages[0], count, loss, scale_grads=False)


_KINDS: dict[str, Callable[..., Any]] = {
    "gpipe": _one(ScheduleGPipe),
    "1f1b": _one(Schedule1F1B),
    "interleaved": lambda stages, count, loss: ScheduleInterleaved1F1B(
        stages, count, loss, scale_grads=False
    ),
}
