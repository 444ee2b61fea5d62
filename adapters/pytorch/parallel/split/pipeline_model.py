"""A model in stages along the ranks of the model axis."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError, Unsupported
from dream._mesh import Microbatches, microbatches
from dream.adapters.pytorch.parallel.split.computed import Computed
from dream.adapters.pytorch.parallel.split.cutting import Outline, StageGraph
from dream.adapters.pytorch.parallel.split.feed import Feed, Loss, rows_of
from dream.adapters.pytorch.parallel.split.inside import inside
from dream.adapters.pytorch.parallel.split.meta import is_meta
from dream.adapters.pytorch.parallel.split.schedules import Schedule, Shape, allows
from dream.adapters.pytorch.parallel.split.stages import Stages
from dream.adapters.pytorch.parallel.split.traceless import traceless
from dream.adapters.pytorch.parallel.split.tracing import (
    Call,
    call_of,
    likely_call,
    state_key,
    trace,
)
from dream.adapters.pytorch.parallel.split.words import packed, unpacked
from dream.adapters.pytorch.slot import set_slot
from dream.adapters.pytorch.update.precision import Precision
from dream.adapters.pytorch.update.recompute import How
from dream.collectives import Communicator

_KEPT = 8  # schedules of other shapes; each holds buffers for what it receives


@dataclass(frozen=True, slots=True)
class Room:
    """Where a pipeline runs, and how. ranks: those of one copy of the model, in the order of its
    stages. precision: what it trains in, where that is not float32. recomputes: which layers."""

    ranks: Communicator
    group: ProcessGroup
    device: torch.device
    schedule: str
    microbatches: int
    precision: Precision | None = None
    recomputes: How = False


@final
class PipelineModel:
    """Runs a model's stages; this rank's alone are held here."""

    def __init__(self, model: nn.Module, stages: Stages, room: Room) -> None:
        self.model, self.stages, self.room = model, stages, room
        self._count = len(stages.starts) + 1
        self._graphs: dict[object, list[StageGraph]] = {}
        self._modules: dict[object, dict[int, nn.Module]] = {}
        self._schedules: OrderedDict[object, Schedule] = OrderedDict()

    @property
    def last(self) -> int:
        """The rank that the last stage is on."""
        return (self._count - 1) % self.room.ranks.world_size

    @property
    def has_last(self) -> bool:
        return self.last == self.room.ranks.rank

    @property
    def mine(self) -> list[int]:
        """The stages of this rank."""
        return [*range(self.room.ranks.rank, self._count, self.room.ranks.world_size)]

    def owners(self) -> dict[str, int]:
        """The rank that holds each tensor of the model's state, by name."""
        found: dict[str, int] = {}
        names = {id(t): name for name, t in self.model.state_dict(keep_vars=True).items()}
        for index, graph in enumerate(self._cut(likely_call(self.model))):
            for tensor in graph.module().state_dict(keep_vars=True).values():
                found.setdefault(names[id(tensor)], index % self.room.ranks.world_size)
        aliases = self.model.state_dict(keep_vars=True).items()
        return {name: found[names[id(t)]] for name, t in aliases if names[id(t)] in found}

    def passes(self, args: tuple[Any, ...]) -> list[list[Shape]]:
        """What passes out of each stage in training, where one rank holds them all."""
        call = self._called(args, {})
        feed = Feed(self.parts(rows_of(args)), [*call.tensors.values()])
        with inside():
            return self._passes(self._computed(call, trains=True), feed.inputs(0), trains=True)

    def train(
        self,
        parts: Microbatches,
        args: tuple[Any, ...],
        target: Any,
        loss: Loss,
        weights: Sequence[float],
        scale: float = 1.0,
    ) -> Feed:
        """The gradients of the microbatches' losses, each times its weight, times `scale`, in the
        parameters of this rank's stages."""
        call = self._called(args, {})
        feed = Feed(parts, [*call.tensors.values()], target, loss, weights, scale)
        self._run(call, feed, trains=True)
        return feed

    def predict(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Feed:
        """A forward pass; its output is the last stage's."""
        call = self._called(args, kwargs)
        inputs = [*call.tensors.values()]
        feed = Feed(self.parts(rows_of(inputs)), inputs)
        with torch.no_grad():
            self._run(call, feed, trains=False)
        return feed

    def predicted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of a forward pass on every rank of the pipeline; all of them call it."""
        feed, ranks = self.predict(args, kwargs), self.room.ranks
        output = feed.output if self.has_last else None
        mine = packed(tree_map(_shape, output)) if self.has_last else b""
        like = unpacked(ranks.broadcast_object(mine, root=self.last))

        def told(given: Any, shape: Any) -> Any:
            if not isinstance(shape, Shape):
                return shape
            own = given if self.has_last else shape.made(self.room.device)
            return ranks.broadcast(own.contiguous(), root=self.last)

        return tree_map(told, output if self.has_last else like, like)

    def _run(self, call: Call, feed: Feed, *, trains: bool) -> None:
        with inside():
            self._schedule(call, feed, trains=trains).run(feed)

    def parts(self, samples: int) -> Microbatches:
        """The microbatches of a batch."""
        room = self.room
        allowed = allows(room.schedule, self._count, room.ranks.world_size)
        return microbatches(samples, room.microbatches, allowed)

    def _schedule(self, call: Call, feed: Feed, *, trains: bool) -> Schedule:
        """The one for batches of this shape, made on first use."""
        shapes = tuple(Shape.of(x) for x in _tensors(feed.inputs(0)))
        trained = tuple(p.requires_grad for p in self.model.parameters()) if trains else ()
        key = (self._key(call), shapes, feed.parts.count, trains, trained)
        if key not in self._schedules:
            self._schedules[key] = self._make(call, feed, trains=trains)
            if len(self._schedules) > _KEPT:
                self._schedules.popitem(last=False)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def _make(self, call: Call, feed: Feed, *, trains: bool) -> Schedule:
        graphs = self._computed(call, trains=trains)
        passes = self._passes(graphs, feed.inputs(0), trains=trains)
        room = self.room
        return Schedule(
            room.schedule, graphs, passes, feed.parts.count, room.device, room.group, trains=trains
        )

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call of the model, on inputs of its type."""
        if self.room.precision is not None:
            args, kwargs = self.room.precision.taken((args, kwargs))
        return call_of(self.model, args, kwargs)

    def _computed(self, call: Call, *, trains: bool) -> dict[int, nn.Module]:
        """This rank's stages as they are computed, in training or beside it."""
        precision, last = self.room.precision, self._count - 1
        whole = trains and self.room.recomputes is True
        if not trains and not (precision is not None and precision.casts_models):
            precision = None
        if precision is None and not whole:
            return self._own(call)
        return {
            index: Computed(graph, precision, last=index == last, whole=whole)
            for index, graph in self._own(call).items()
        }

    def _own(self, call: Call) -> dict[int, nn.Module]:
        key = self._key(call)
        if key not in self._modules:
            graphs = self._cut(call)
            self._modules[key] = {index: graphs[index].module() for index in self.mine}
            for module in self._modules[key].values():
                set_slot(module, None)
        return self._modules[key]

    def _key(self, call: Call) -> object:
        return call.key, state_key(self.model, self.stages.opened)

    def _cut(self, call: Call) -> list[StageGraph]:
        key = self._key(call)
        if key not in self._graphs:
            outline = Outline(self.model, trace(self.model, call, self.stages.opened))
            self._graphs[key] = outline.stage_graphs(self.stages.positions(outline))
        return self._graphs[key]

    def _passes(
        self, graphs: dict[int, nn.Module], inputs: list[Any], *, trains: bool
    ) -> list[list[Shape]]:
        """What passes out of each stage, found by a first pass that leaves no trace."""
        passes: list[list[Shape]] = []
        ranks = self.room.ranks
        for index in range(self._count - 1):
            told: Any = None
            owner = index % ranks.world_size
            if owner == ranks.rank:
                received = [s.made(self.room.device) for s in passes[-1]] if index else []
                told = _tried(graphs[index], inputs, received, trains=trains)
            told = unpacked(ranks.broadcast_object(packed(told), root=owner))
            if isinstance(told, str):
                raise ConfigurationError(
                    f"Stage {index} could not run, or gave what cannot be sent on. Received: "
                    f"{told}. Between stages only tensors pass."
                )
            passes.append(told)
        return [*passes, [Shape((), torch.float32, trains)]]


def _tried(
    stage: nn.Module, inputs: list[Any], received: list[torch.Tensor], *, trains: bool
) -> list[Shape] | str:
    try:
        with traceless(stage), torch.set_grad_enabled(trains):
            return [Shape.of(x) for x in stage(*inputs, *received)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _shape(x: Any) -> Any:
    return Shape.of(x) if isinstance(x, torch.Tensor) else x


def _tensors(inputs: list[Any]) -> list[torch.Tensor]:
    return [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)]


def refuse_layers(model: nn.Module) -> None:
    """Layers whose numbers would depend on how a batch is cut, and those that have none yet."""
    if is_meta(model):
        raise Unsupported(
            "A pipeline is cut by running its layers, which need their values. Received: "
            f"{type(model).__name__} on the meta device. Make it on its real device, of which each "
            "rank keeps its stages; or use 'sharded' or split='tensor', which fill it in parts."
        )
    for name, layer in model.named_modules():
        norm = isinstance(layer, nn.modules.batchnorm._NormBase) and (
            isinstance(layer, nn.modules.batchnorm._BatchNorm) or layer.track_running_stats
        )
        if norm:
            raise Unsupported(
                "A pipeline's layers see microbatches, so this one would normalise over each of "
                f"them by itself. Received: layer {name!r} ({type(layer).__name__}). Use GroupNorm "
                "or LayerNorm, or mirrored."
            )
