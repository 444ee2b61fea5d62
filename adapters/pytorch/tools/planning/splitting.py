"""Training steps of split models as dream's strategies make them, in a make-believe world."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dream._errors import Unsupported
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.parallel.split import gradients
from dream.adapters.pytorch.parallel.split.feed import rows_of
from dream.adapters.pytorch.parallel.split.parts import Parts
from dream.adapters.pytorch.parallel.split.pipeline_model import PipelineModel, refuse_layers
from dream.adapters.pytorch.parallel.split.pipeline_model import Room as PipelineRoom
from dream.adapters.pytorch.parallel.split.room import Room
from dream.adapters.pytorch.parallel.split.root import SplitRoot, claim
from dream.adapters.pytorch.parallel.split.sharded_root import ShardedRoot
from dream.adapters.pytorch.parallel.split.stages import evened, parameters_of
from dream.adapters.pytorch.parallel.split.step import Summed
from dream.adapters.pytorch.parallel.split.telling import Telling
from dream.adapters.pytorch.parallel.split.tensor_root import TensorRoot
from dream.adapters.pytorch.parallel.split.words import packed
from dream.adapters.pytorch.passes import step_of, uncut
from dream.adapters.pytorch.tools.planning.make_believe import World
from dream.collectives import Communicator
from dream.data.partition import split
from dream.tools.plan.candidates import Candidate
from dream.tools.plan.sketch import Phase

Mark = Callable[[Phase], None]
Optimize = Callable[[Iterable[nn.Parameter]], Optimizer]
_DEVICE = torch.device("cpu")


@final
@dataclass(frozen=True, slots=True)
class Steps:
    """parameters: this rank's."""

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
) -> Steps:
    """Split the model. mark: told when a phase begins."""
    if candidate.kind == "pipeline":
        return _pipeline(candidate, here, model, loss, optimize, batch)
    place = here.place
    dealt = place.world if candidate.kind == "sharded" else place.data
    room = Room(candidate.kind, place.world, dealt, Shares(), 0, _unused, synchronises=True)
    root = _root(candidate, here, model, room)
    root.cut()
    claim(root)
    root.take_knobs()
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Unsupported(
            f"There is nothing to cut in the model. Received: {type(model).__name__} over "
            f"{candidate.mesh.model} ranks. Use 'sharded'."
        )
    optimizer = optimize(model.parameters())
    passes = Summed(root, _marked(loss, mark), _group(candidate, here))
    once = step_of(passes, optimizer, uncut(lambda _: 1.0), None)
    return Steps(lambda: once(*batch), optimizer, [*model.parameters()], [*model.buffers()])


def _group(candidate: Candidate, here: World) -> distributed.ProcessGroup | None:
    """The ranks that batches are dealt to; None where that is one."""
    if candidate.kind == "sharded":
        return distributed.group.WORLD
    return None if here.place.data.world_size == 1 else here.devices["data"].get_group()


def _root(candidate: Candidate, here: World, model: nn.Module, room: Room) -> SplitRoot:
    mesh = here.devices["model"]
    if candidate.kind == "sharded":
        reshard = candidate.zero == 3
        return ShardedRoot(model, room, None, mesh=mesh, device=_DEVICE, reshard=reshard)
    among = here.place.model
    return TensorRoot(model, room, None, mesh=mesh, device=_DEVICE, asked="auto", among=among)


def _unused(*_: Any) -> SplitRoot:
    raise AssertionError("no module is made in a rehearsal's room")


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
        return value if root == self.rank else packed(self.told[root])


def _pipeline(
    candidate: Candidate,
    here: World,
    model: nn.Module,
    loss: Callable[..., Any],
    optimize: Optimize,
    batch: tuple[Any, ...],
) -> Steps:
    """`Pipeline.train_step`, whose ranks told each other beforehand what passes between them."""
    refuse_layers(model)
    place, count = here.place, candidate.mesh.model
    stages = evened(model, count, parameters_of(model))
    group = distributed.new_group(list(place.mesh.copy_of(place.rank)))
    assert isinstance(group, distributed.ProcessGroup)
    inputs, target = split(batch)

    def held(ranks: _Ranks) -> PipelineModel:
        known = cast(Communicator, ranks)
        room = PipelineRoom(known, group, _DEVICE, "1f1b", candidate.microbatches)
        return PipelineModel(model, stages, room)

    told = held(_Ranks(0, 1, [])).passes(inputs)
    pipeline = held(_Ranks(place.model_index, count, told))
    parts = Parts(model, pipeline.owners(), place.model_index)
    parts.drop_others()
    optimizer = optimize(parts.parameters)
    telling = Telling(group, count - 1, _DEVICE)
    samples = pipeline.parts(rows_of(batch))
    weights = [samples.real(index) / samples.samples for index in range(samples.count)]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        telling.expect()
        feed = pipeline.train(samples, inputs, target, loss, weights)
        value = telling.tell(feed.mean_loss if pipeline.has_last else None)
        gradients.average(parts.parameters, value, place.data)
        optimizer.step()

    return Steps(step, optimizer, parts.parameters, [*model.buffers()])
