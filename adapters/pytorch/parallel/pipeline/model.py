"""A model in stages along the ranks of the model axis."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, final

import torch
from torch import nn

from dream._adapter import Loss
from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.parallel.inner_calls import running_layers, without_side_effects
from dream.adapters.pytorch.parallel.pipeline.microbatch_run import (
    MicrobatchRun,
    Weigh,
    rows_of,
)
from dream.adapters.pytorch.parallel.pipeline.schedule import (
    PipelineSettings,
    ScheduleExecutor,
    TensorSpec,
    pack_specs,
    unpack_specs,
)
from dream.adapters.pytorch.parallel.pipeline.stages import StageCuts
from dream.adapters.pytorch.parallel.sharding.graph import (
    ForwardCall,
    LayerSequence,
    StageCode,
    call_of,
    likely_call,
    state_key,
    trace,
)
from dream.adapters.pytorch.parallel.sharding.meta import is_meta
from dream.adapters.pytorch.private import normalises_batches, tree_leaves, tree_map
from dream.adapters.pytorch.update.precision import ModelPrecision
from dream.adapters.pytorch.update.recompute import again
from dream.pipeline.division import Microbatches

_KEPT = 8  # schedules of other shapes; each holds buffers for what it receives


@final
class PipelineModel:
    """Runs a model's stages; this rank's alone are held here."""

    def __init__(self, model: nn.Module, stages: StageCuts, settings: PipelineSettings) -> None:
        self.model, self.stages, self.settings = model, stages, settings
        self._count = len(stages.starts) + 1
        self._graphs: dict[object, list[StageCode]] = {}
        self._modules: dict[object, dict[int, nn.Module]] = {}
        self._schedules: OrderedDict[object, ScheduleExecutor] = OrderedDict()

    @property
    def last(self) -> int:
        """Return the rank that the last stage is on."""
        return (self._count - 1) % self.settings.ranks.world_size

    @property
    def has_last(self) -> bool:
        return self.last == self.settings.ranks.rank

    @property
    def mine(self) -> list[int]:
        """Return the stages of this rank."""
        return [*range(self.settings.ranks.rank, self._count, self.settings.ranks.world_size)]

    def owners(self) -> dict[str, int]:
        """Return the rank that holds each tensor of the model's state, by name."""
        found: dict[str, int] = {}
        names = {id(t): name for name, t in self.model.state_dict(keep_vars=True).items()}
        for index, graph in enumerate(self._cut(likely_call(self.model))):
            for tensor in graph.module().state_dict(keep_vars=True).values():
                found.setdefault(names[id(tensor)], index % self.settings.ranks.world_size)
        aliases = self.model.state_dict(keep_vars=True).items()
        return {name: found[names[id(t)]] for name, t in aliases if names[id(t)] in found}

    def passes(self, args: tuple[Any, ...]) -> list[list[TensorSpec]]:
        """Find what passes out of each stage in training, where one rank holds them all."""
        call = self._bind(args, {})
        run = MicrobatchRun(self.parts(rows_of(args)), [*call.tensors.values()])
        with running_layers():
            return self._passes(self._stage_modules(call, trains=True), run.inputs(0), trains=True)

    def train(
        self,
        parts: Microbatches,
        args: tuple[Any, ...],
        target: Any,
        loss: Loss,
        weigh: Weigh,
        scale: float = 1.0,
    ) -> MicrobatchRun:
        """Leave the gradients of the microbatches' losses, weighed, times `scale`, in the
        parameters of this rank's stages."""
        call = self._bind(args, {})
        run = MicrobatchRun(parts, [*call.tensors.values()], target, loss, weigh, scale)
        self._run(call, run, trains=True)
        return run

    def predict(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> MicrobatchRun:
        """Run a forward pass, whose output is the last stage's."""
        call = self._bind(args, kwargs)
        inputs = [*call.tensors.values()]
        run = MicrobatchRun(self.parts(rows_of(inputs)), inputs)
        with torch.no_grad():
            self._run(call, run, trains=False)
        return run

    def predict_everywhere(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of a forward pass on every rank of the pipeline. All call it."""
        run, ranks = self.predict(args, kwargs), self.settings.ranks
        output = run.output if self.has_last else None
        mine = pack_specs(tree_map(_spec_of, output)) if self.has_last else b""
        like = unpack_specs(ranks.broadcast_object(mine, root=self.last))

        def share(given: Any, shape: Any) -> Any:
            if not isinstance(shape, TensorSpec):
                return shape
            own = given if self.has_last else shape.made(self.settings.device)
            return ranks.broadcast(own.contiguous(), root=self.last)

        return tree_map(share, output if self.has_last else like, like)

    def _run(self, call: ForwardCall, run: MicrobatchRun, *, trains: bool) -> None:
        with running_layers():
            self._schedule(call, run, trains=trains).run(run)

    def parts(self, samples: int) -> Microbatches:
        """Cut a batch into microbatches."""
        return self.settings.cut(samples, self._count)

    def _schedule(self, call: ForwardCall, run: MicrobatchRun, *, trains: bool) -> ScheduleExecutor:
        """Return the one for batches of this shape, made on first use."""
        shapes = tuple(TensorSpec.of(x) for x in _tensors(run.inputs(0)))
        trained = tuple(p.requires_grad for p in self.model.parameters()) if trains else ()
        key = (self._key(call), shapes, run.parts.count, trains, trained)
        if key not in self._schedules:
            self._schedules[key] = self._make(call, run, trains=trains)
            if len(self._schedules) > _KEPT:
                self._schedules.popitem(last=False)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def _make(self, call: ForwardCall, run: MicrobatchRun, *, trains: bool) -> ScheduleExecutor:
        graphs = self._stage_modules(call, trains=trains)
        passes = self._passes(graphs, run.inputs(0), trains=trains)
        return ScheduleExecutor(self.settings, graphs, passes, run.parts.count, trains=trains)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ForwardCall:
        """Bind a call of the model, on inputs of its type."""
        if self.settings.precision is not None:
            args, kwargs = self.settings.precision.taken((args, kwargs))
        return call_of(self.model, args, kwargs)

    def _stage_modules(self, call: ForwardCall, *, trains: bool) -> dict[int, nn.Module]:
        """Return this rank's stages as they are computed, in training or beside it."""
        precision, last = self.settings.precision, self._count - 1
        whole = trains and self.settings.recomputes is True
        if not trains and not (precision is not None and precision.casts_models):
            precision = None
        if precision is None and not whole:
            return self._stage_graphs(call)
        return {
            index: StageComputation(graph, precision, last=index == last, whole=whole)
            for index, graph in self._stage_graphs(call).items()
        }

    def _stage_graphs(self, call: ForwardCall) -> dict[int, nn.Module]:
        key = self._key(call)
        if key not in self._modules:
            graphs = self._cut(call)
            self._modules[key] = {index: graphs[index].module() for index in self.mine}
            for module in self._modules[key].values():
                set_hook(module, None)
        return self._modules[key]

    def _key(self, call: ForwardCall) -> object:
        return call.key, state_key(self.model, self.stages.opened)

    def _cut(self, call: ForwardCall) -> list[StageCode]:
        key = self._key(call)
        if key not in self._graphs:
            sequence = LayerSequence(self.model, trace(self.model, call, self.stages.opened))
            self._graphs[key] = sequence.stage_graphs(self.stages.positions(sequence))
        return self._graphs[key]

    def _passes(
        self, graphs: dict[int, nn.Module], inputs: list[Any], *, trains: bool
    ) -> list[list[TensorSpec]]:
        """Find what passes out of each stage, by a first pass that leaves no trace."""
        passes: list[list[TensorSpec]] = []
        ranks = self.settings.ranks
        for index in range(self._count - 1):
            told: Any = None
            owner = index % ranks.world_size
            if owner == ranks.rank:
                received = [s.made(self.settings.device) for s in passes[-1]] if index else []
                told = _try(graphs[index], inputs, received, trains=trains)
            told = unpack_specs(ranks.broadcast_object(pack_specs(told), root=owner))
            if isinstance(told, str):
                raise ConfigurationError(
                    f"Stage {index} could not run, or gave what cannot be sent on. Received: "
                    f"{told}. Between stages only tensors pass."
                )
            passes.append(told)
        return [*passes, [TensorSpec((), torch.float32, trains)]]


def _try(
    stage: nn.Module, inputs: list[Any], received: list[torch.Tensor], *, trains: bool
) -> list[TensorSpec] | str:
    try:
        with without_side_effects(stage), torch.set_grad_enabled(trains):
            return [TensorSpec.of(x) for x in stage(*inputs, *received)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _spec_of(x: Any) -> Any:
    return TensorSpec.of(x) if isinstance(x, torch.Tensor) else x


def _tensors(inputs: list[Any]) -> list[torch.Tensor]:
    return [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)]


def refuse_layers(model: nn.Module) -> None:
    """Refuse layers whose numbers would depend on how a batch is cut, or that have none yet."""
    if is_meta(model):
        raise Unsupported(
            "A pipeline is cut by running its layers, which need their values. Received: "
            f"{type(model).__name__} on the meta device. Make it on its real device, of which each "
            "rank keeps its stages; or use 'sharded' or split='tensor', which fill it in parts."
        )
    for name, layer in model.named_modules():
        if normalises_batches(layer):
            raise Unsupported(
                "A pipeline's layers see microbatches, so this one would normalise over each of "
                f"them by itself. Received: layer {name!r} ({type(layer).__name__}). Use GroupNorm "
                "or LayerNorm, or mirrored."
            )


@final
class StageComputation(nn.Module):
    """Runs one stage forward and backward.

    last: the stage gives the model's output, which is float32. whole: backward computes the
    stage again, of which what goes in is kept.
    """

    def __init__(
        self, graph: nn.Module, precision: ModelPrecision | None, *, last: bool, whole: bool
    ) -> None:
        super().__init__()
        set_hook(self, None)  # made in the block, but no user's
        self.graph = graph
        self._precision, self._last, self._whole = precision, last, whole

    def forward(self, *taken: Any) -> Any:
        if self._precision is None:
            return self._run(*taken)
        with self._precision.casting():
            output = self._run(*taken)
            return self._precision.restored(output) if self._last else output

    def _run(self, *taken: Any) -> Any:
        return again(self.graph, [], *taken) if self._whole else self.graph(*taken)
