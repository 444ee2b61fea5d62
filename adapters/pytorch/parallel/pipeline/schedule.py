"""torch's pipeline schedules over stages of dream's, and what ranks are told of the tensors that
pass between stages."""

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

from dream import _plain
from dream._plain import Codec, name_of
from dream.adapters.pytorch import private
from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.errors import peer_failed
from dream.adapters.pytorch.parallel.pipeline.microbatch_run import MicrobatchRun
from dream.adapters.pytorch.update.precision import ModelPrecision
from dream.adapters.pytorch.update.recompute import How
from dream.collectives import Communicator
from dream.pipeline.division import Microbatches, microbatches


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor that passes between stages looks like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, x: torch.Tensor) -> TensorSpec:
        return cls(tuple(x.shape), x.dtype, x.requires_grad)

    def made(self, device: torch.device | str) -> torch.Tensor:
        zeros = torch.zeros(self.shape, dtype=self.dtype, device=device)
        return zeros.requires_grad_(self.requires_grad)


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Where a pipeline runs, and how. ranks: those of one copy of the model, in the order of its
    stages. precision: what it trains in, where that is not float32. recomputes: which layers."""

    ranks: Communicator
    group: ProcessGroup
    device: torch.device
    schedule: str
    microbatches: int
    precision: ModelPrecision | None = None
    recomputes: How = False

    def cut(self, samples: int, stages: int) -> Microbatches:
        """Cut a batch into as many microbatches as the schedule can run."""

        def allowed(count: int) -> bool:
            if self.schedule == "1f1b":
                return count >= stages
            if self.schedule == "interleaved":
                return count % max(1, count // self.ranks.world_size) == 0
            return count >= 1

        return microbatches(samples, self.microbatches, allowed)


@final
class ScheduledStage(nn.Module):
    """A stage as the schedules call it, once for each microbatch in turn."""

    def __init__(self, graph: nn.Module, *, first: bool, last: bool) -> None:
        super().__init__()
        set_hook(self, None)  # made in the block, but no user's
        self.graph = graph
        self._first, self._last = first, last
        self._run: MicrobatchRun | None = None
        self._next = 0

    def begin(self, run: MicrobatchRun | None) -> None:
        self._run, self._next = run, 0

    def forward(self, *received: torch.Tensor) -> Any:
        assert self._run is not None
        index, self._next = self._next, self._next + 1
        output = self.graph(*self._run.inputs(index), *(() if self._first else received))
        return self._run.finish(index, output) if self._last else output


@final
class ScheduleExecutor:
    """Runs this rank's stages, ready for batches of one shape.

    graphs: the rank's stages by index. passes: what goes into each stage but the first, then out
    of the last one.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        graphs: dict[int, nn.Module],
        passes: Sequence[Sequence[TensorSpec]],
        microbatches: int,
        *,
        trains: bool,
    ) -> None:
        count = len(passes)
        self._stages = {
            index: ScheduledStage(graph, first=index == 0, last=index == count - 1)
            for index, graph in graphs.items()
        }
        made = [
            PipelineStage(
                stage,
                index,
                count,
                settings.device,
                input_args=_examples(passes[index - 1]) if index else _index(1),
                output_args=_examples(passes[index]),
                group=settings.group,
            )
            for index, stage in self._stages.items()
        ]
        self._schedule = _KINDS[settings.schedule](made, microbatches, _loss if trains else None)
        self._given = _index(microbatches) if 0 in graphs else None
        self._target = _index(microbatches) if trains and count - 1 in graphs else None

    def run(self, run: MicrobatchRun) -> None:
        """Send all microbatches through this rank's stages, and back where they are trained."""
        for stage in self._stages.values():
            stage.begin(run)
        given = () if self._given is None else (self._given,)
        try:
            self._schedule.step(*given, target=self._target, return_outputs=False)
        except RuntimeError as error:
            raise _cause(error) from error
        finally:
            for stage in self._stages.values():
                stage.begin(None)


def _cause(error: RuntimeError) -> BaseException:
    """Return what the model or the loss raised, out of torch's wrapping; else a peer failed."""
    cause = error.__cause__
    return peer_failed("the pipeline", error) if cause is None else cause


def _index(count: int) -> torch.Tensor:
    """Return what the schedules cut into microbatches in place of the batch."""
    return torch.arange(count)


def _examples(shapes: Sequence[TensorSpec]) -> tuple[torch.Tensor, ...]:
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


def pack_specs(value: object) -> bytes:
    """Pack shapes and plain values, in any structure that torch knows."""
    return _plain.pack(value, _STRUCTURES)


def unpack_specs(data: bytes) -> Any:
    return _plain.unpack(data, _STRUCTURES)


def _encode(value: object) -> tuple[str, object] | None:
    if isinstance(value, TensorSpec):
        dtype = str(value.dtype).removeprefix("torch.")
        return "shape", (tuple(value.shape), dtype, value.requires_grad)
    if isinstance(value, tuple) and private.is_named_tuple(value):
        return "named", (name_of(type(value)), list(value))
    structure = private.structure_of(value)
    if structure is None:
        return None
    kind, children, context = structure
    return "node", (name_of(kind), children, context)


def _decode(tag: str, value: Any) -> object:
    if tag == "shape":
        shape, dtype, requires_grad = value
        return TensorSpec(tuple(shape), _dtype(dtype), bool(requires_grad))
    if tag == "named":
        name, children = value
        return _known(name, tuple.__subclasses__())(*children)
    if tag == "node":
        name, children, context = value
        kind = _known(name, private.structure_kinds())
        return private.structure_made(kind, children, context)
    raise ValueError("an unknown structure")


def _known(name: object, kinds: Sequence[type[Any]]) -> type[Any]:
    """Find a class among those that this rank has too."""
    found = [kind for kind in kinds if name_of(kind) == name]
    if not found:
        raise ValueError(f"{name!r:.100}, which this rank does not have")
    return found[-1]


def _dtype(name: object) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("no dtype")
    return dtype


_STRUCTURES = Codec(_encode, _decode)
