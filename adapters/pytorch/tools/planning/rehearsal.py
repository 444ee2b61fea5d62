"""Rehearse a step of a split model, by the strategy's own code, without values.

What is foretold so cannot differ from what the strategy does: which layers are cut and where, what
is gathered and for how long, which collectives are called with how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import Unsupported
from dream._topology import Mesh
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.adapters.pytorch.loss.calls import SIZE, VALUE
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.parallel.fsdp.parallelism import FullyShardedModule
from dream.adapters.pytorch.parallel.pipeline.microbatch_run import rows_of
from dream.adapters.pytorch.parallel.pipeline.model import PipelineModel, refuse_layers
from dream.adapters.pytorch.parallel.pipeline.schedule import PipelineSettings, pack_specs
from dream.adapters.pytorch.parallel.pipeline.stages import (
    StageParameters,
    balanced_stages,
    parameter_costs,
)
from dream.adapters.pytorch.parallel.pipeline.step import LossBroadcast, by_hand
from dream.adapters.pytorch.parallel.sharding.gradients import average
from dream.adapters.pytorch.parallel.sharding.module import ShardContext, ShardedModule
from dream.adapters.pytorch.parallel.sharding.parameters import SplitParameters
from dream.adapters.pytorch.parallel.sharding.step import starting_anywhere
from dream.adapters.pytorch.parallel.tensor.parallelism import TensorParallelModule
from dream.adapters.pytorch.tools.planning.example import (
    Example,
    cast_batch,
    cast_model,
    example,
    make_optimizer,
    precision_context,
)
from dream.adapters.pytorch.tools.planning.fake_world import World, rehearsal_stubs, world
from dream.adapters.pytorch.tools.planning.ledger import Ledger, most_since, working
from dream.adapters.pytorch.tools.planning.twins import step_twins_once
from dream.adapters.pytorch.train_step import Batch, Passes, step_of, uncut
from dream.adapters.pytorch.update.gradients import Whole
from dream.collectives import Communicator
from dream.data.partition import split
from dream.tools.plan.asked import TrainingSpec
from dream.tools.plan.sketch import Candidate, Phase, Rehearsal, Sending
from dream.update.update import UpdateOptions

Mark = Callable[[Phase], None]
Optimize = Callable[[Iterable[nn.Parameter]], Optimizer]
_DEVICE = torch.device("cpu")


@final
@dataclass(frozen=True, slots=True)
class RehearsedSteps:
    """A step to rehearse, and what it trains.

    parameters: this rank's.
    """

    step: Callable[[], Any]
    optimizer: Optimizer
    parameters: list[nn.Parameter]
    buffers: list[torch.Tensor]


def steps_of(
    candidate: Candidate,
    here: World,
    model: nn.Module,
    loss: Callable[..., Any],
    optimize: Optimize,
    mark: Mark,
    batch: tuple[Any, ...],
    told: list[Any],
    *,
    recomputes: bool = False,
) -> RehearsedSteps:
    """Split the model. mark: told when a phase begins. told: what passes between the stages of a
    pipeline, once it is known. recomputes: layers are, in backward."""
    if candidate.kind == "pipeline":
        return _pipeline(candidate, here, model, loss, optimize, batch, told, recomputes=recomputes)
    place = here.place
    dealt = place.world if candidate.kind == "sharded" else place.data
    training = Training(UpdateOptions(), _DEVICE.type, dealt.world_size, Whole())
    registry = ModuleRegistry(
        _unused, dealt, Shares(), training, synchronises=True, recomputes=recomputes,
        world=place.world, takes_meta=True,
    )  # fmt: skip
    root = _root(candidate, here, model, registry)
    root.split()
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Unsupported(
            f"There is nothing to cut in the model. Received: {type(model).__name__} over "
            f"{candidate.mesh.model} ranks. Use 'sharded'."
        )
    optimizer = optimize(model.parameters())
    once = step_of(
        root.module, _Passes(root, _marked(loss, mark)), optimizer, uncut(lambda _: 1.0), None
    )
    return RehearsedSteps(
        lambda: once(*batch), optimizer, [*model.parameters()], [*model.buffers()]
    )


@final
class _Passes(Passes):
    """The passes of `train_step`, on values that there are none of: nothing is weighed."""

    def __init__(self, root: ShardedModule, loss: Callable[..., Any]) -> None:
        self._root, self._loss = root, loss

    def run(self, batch: Batch, weight: Any, *, first: bool, last: bool) -> None:
        inputs, target = split(batch)
        value = self._loss(self._root.call_part(None, inputs, first=first, last=last), target)
        self._root.send(value.detach().expand(SIZE).clone())
        starting_anywhere(torch.autograd.backward)(value)

    def told(self) -> torch.Tensor:
        return self._root.received()[VALUE]


def _dealt_to(candidate: Candidate, here: World) -> distributed.ProcessGroup | None:
    """Return the ranks that batches are dealt to; None where that is one."""
    if candidate.kind == "sharded":
        return distributed.group.WORLD
    return None if here.place.data.world_size == 1 else here.devices["data"].get_group()


def _root(
    candidate: Candidate, here: World, model: nn.Module, registry: ModuleRegistry
) -> ShardedModule:
    groups = candidate.kind == "sharded" and here.place.mesh.data > 1
    context = ShardContext(
        SplitParameters(registry), WeighedBackward(registry.communicator),
        here.devices if groups else here.devices["model"], _DEVICE, _dealt_to(candidate, here),
    )  # fmt: skip
    if candidate.kind == "sharded":
        return FullyShardedModule(model, registry, None, context, reshard=candidate.zero == 3)
    return TensorParallelModule(model, registry, None, context, asked="auto", among=None)


def _unused(*_: Any) -> ShardedModule:
    raise AssertionError("no module is made in a rehearsal's registry")


def _marked(loss: Callable[..., Any], mark: Mark) -> Callable[..., Any]:
    """Backward begins where the loss is known."""

    def marked(output: Any, target: Any) -> Any:
        value = loss(output, target)
        value.register_hook(lambda _: mark("backward"))
        return value

    return marked


@final
@dataclass(frozen=True, slots=True)
class _Ranks:
    """A pipeline's ranks, as far as its model asks them. told: what each tells, by rank."""

    rank: int
    world_size: int
    told: list[Any]

    def broadcast_object(self, value: Any, root: int) -> Any:
        return value if root == self.rank else pack_specs(self.told[root])


def _pipeline(
    candidate: Candidate,
    here: World,
    model: nn.Module,
    loss: Callable[..., Any],
    optimize: Optimize,
    batch: tuple[Any, ...],
    told: list[Any],
    *,
    recomputes: bool,
) -> RehearsedSteps:
    """`Pipeline.train_step`, whose ranks told each other beforehand what passes between them."""
    refuse_layers(model)
    place, count = here.place, candidate.mesh.model
    stages = balanced_stages(model, count, parameter_costs(model))
    group = distributed.new_group(list(place.mesh.copy_of(place.rank)))
    assert isinstance(group, distributed.ProcessGroup)
    inputs, target = split(batch)

    def held(ranks: _Ranks) -> PipelineModel:
        known = cast(Communicator, ranks)
        settings = PipelineSettings(
            known, group, _DEVICE, "1f1b", candidate.microbatches, None, recomputes
        )
        return PipelineModel(model, stages, settings)

    told += [] if told else held(_Ranks(0, 1, [])).passes(inputs)
    pipeline = held(_Ranks(place.model_index, count, told))
    parts = StageParameters(model, pipeline.owners(), place.model_index)
    parts.drop_others()
    optimizer = optimize(parts.parameters)
    loss_broadcast = LossBroadcast(group, count - 1, _DEVICE)
    samples = pipeline.parts(rows_of(batch))
    weigh = by_hand([samples.real(index) / samples.samples for index in range(samples.count)])

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_broadcast.expect()
        run = pipeline.train(samples, inputs, target, loss, weigh)
        value = loss_broadcast.share(run.mean_loss if pipeline.has_last else None)
        average(parts.parameters, value, place.data)
        optimizer.step()

    return RehearsedSteps(step, optimizer, parts.parameters, [*model.buffers()])


_STEPS = 2
"""The first one makes the optimizer's state, and what is kept from step to step; the last one is
told of."""
_TWINS = 2
"""However many copies there are, a rank calls the same with as much."""


def rehearse(
    build: Callable[[], Any], training: TrainingSpec, candidate: Candidate, batch: int
) -> list[Rehearsal]:
    """Of rank 0, which has the largest parts; of a pipeline the ranks that differ most."""
    mesh = Mesh(min(candidate.mesh.data, _TWINS), candidate.mesh.model)
    told: list[Any] = []
    return [
        _Rehearsal(build, training, candidate, batch, told).run(mesh, rank)
        for rank in _ranks(candidate)
    ]


def _ranks(candidate: Candidate) -> list[int]:
    """Choose those that may need most: the first stage of a pipeline keeps most microbatches, the
    last one has the outputs."""
    last = candidate.mesh.model - 1
    return [0] if candidate.kind != "pipeline" else sorted({0, 1, last})


@final
class _Rehearsal:
    def __init__(
        self, build: Callable[[], Any], training: TrainingSpec, candidate: Candidate, batch: int,
        told: list[Any],
    ) -> None:  # fmt: skip
        self._build, self._training = build, training
        self._candidate, self._batch, self._told = candidate, batch, told
        self._ledger = Ledger(describes=training.timed)
        self._patches = Patches()

    def run(self, mesh: Mesh, rank: int) -> Rehearsal:
        ledger = self._ledger
        ledger.counts = False
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with world(mesh, rank) as here, rehearsal_stubs(), fake, ledger:
            found = example(self._build())
            model = cast_model(found.model, self._training.precision).train()
            batch, loss = self._samples(found), found.loss
            del found
            steps = steps_of(
                self._candidate, here, model, loss, self._optimizer, self._mark, batch,
                self._told, recomputes=self._training.recompute,
            )  # fmt: skip
            for left in reversed(range(_STEPS)):
                begun, ledger.counts = len(ledger.events), not left
                with precision_context(self._training.precision):
                    steps.step()
            return self._result(steps, mesh, rank, begun)

    def _samples(self, found: Example) -> tuple[Any, ...]:
        precision = self._training.precision
        batch: tuple[Any, ...] = tree_map(
            lambda x: cast_batch(x, precision) if isinstance(x, torch.Tensor) else x,
            found.batch_of(self._batch),
        )
        return batch if len(batch) > 1 else (*batch, *batch)

    def _mark(self, phase: Phase) -> None:
        self._ledger.phase = phase

    def _optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        training = self._training
        plain = self._candidate.kind == "pipeline"  # torch takes parts of tensors one by one
        parts: list[Any] = [*parameters] or [{"params": []}]  # none of a ReLU alone
        made = make_optimizer(training.optimizer, parts, fused=training.fused and plain)
        made.register_step_pre_hook(lambda *_: self._mark("update"))
        made.register_step_post_hook(lambda *_: self._mark("forward"))
        if not plain:
            self._patches.replace(made, "step", step_twins_once(made, self._ledger))
        return made

    def _result(self, steps: RehearsedSteps, mesh: Mesh, rank: int, begun: int) -> Rehearsal:
        ledger = self._ledger
        parameters = [*steps.parameters, *steps.buffers]
        gradients = [p.grad for p in steps.parameters if p.grad is not None]
        states = tree_leaves(list(steps.optimizer.state.values()))
        held = {kind: self._numbers(tensors) for kind, tensors in
                (("own", parameters), ("gradients", gradients), ("state", states))}  # fmt: skip
        size = {kind: sum(ledger.made[n] for n in found) for kind, found in held.items()}
        peak, there = most_since(ledger, begun)
        known = sum(ledger.made[n] for found in held.values() for n in found if n in there)
        return Rehearsal(
            rank % mesh.model, size["own"], size["gradients"], size["state"], peak - known, peak,
            tuple(ledger.done), _sent(ledger, mesh),
            max(ledger.made, default=0), working(ledger, begun, set().union(*held.values())),
        )  # fmt: skip

    def _numbers(self, tensors: list[Any]) -> set[int]:
        """Of the storages of this rank's parts."""
        local = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
        plain = [x for x in local if isinstance(x, torch.Tensor) and not x.is_meta]
        return {number for x in plain if (number := self._ledger.number(x)) >= 0}


def _sent(ledger: Ledger, mesh: Mesh) -> tuple[Sending, ...]:
    found = Counter(
        (one.operation, one.size, _axis(mesh, one.ranks), one.phase) for one in ledger.sent
    )
    return tuple(
        Sending(operation, size, "data" if axis else "model", phase, count)
        for (operation, size, axis, phase), count in found.items()
    )


def _axis(mesh: Mesh, ranks: tuple[int, ...]) -> bool:
    """Return whether ranks lie along the data axis."""
    return mesh.data > 1 and len(ranks) > 1 and ranks[1] - ranks[0] == mesh.model
