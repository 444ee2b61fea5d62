"""A strategy in torch is a `Parallelism`; `TorchAdapter` does what all of them have in common.

It is one class: `distribute` a module, `adopt` an optimizer, run a module's passes
`forward_backward`, and subscribe to what is made in the block.

- ddp: `distribute` has gradients averaged while backward runs.
- sharded, tensor: `distribute` shards a module's parameters and `adopt` gives an optimizer the
  shards; `dealt` and `told_by` are the mesh's data axis and all ranks; a `spread` of their own.
- pipeline: `forward_backward` is its schedule, `evaluate` goes through the stages.
- parameter_server has an adapter of its own yet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Loss, Metric, Plan, Step, Weight
from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch import collectives, evaluate, tensors
from dream.adapters.pytorch.checkpoint.checkpointer import TorchCheckpointer
from dream.adapters.pytorch.checkpoint.sharded_state import ShardedState
from dream.adapters.pytorch.compression import Exchanged
from dream.adapters.pytorch.data.loader import LoaderSharder
from dream.adapters.pytorch.data.modes import Modes
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.randomness.calls import CallDraws
from dream.adapters.pytorch.randomness.generators import InStep
from dream.adapters.pytorch.tensors import TorchTensors
from dream.adapters.pytorch.train_step import Cuts, Passes, cuts_of, plain_step, step_of
from dream.adapters.pytorch.update.gradients import Spread, Whole
from dream.checkpoint.checkpointer import Checkpointer
from dream.collectives import Communicator, Loop, Members, Wire
from dream.data.partition import Divided, Division
from dream.strategies import registry
from dream.update.recomputing import AUTO
from dream.update.update import UpdateOptions

Values = Collection[object]
"""Those of an option that are honoured; none stands for all."""
HONOURED: Mapping[str, Values] = {
    "accumulate": (),
    "clip_norm": (),
    "clip_value": (),
    "precision": (),
    "recompute": (),
    "memory_budget": (),
    "strict": (),
    "sync_batch_norm": (),
}
"""What models are trained with that no rank or device has whole."""


@final
@dataclass(frozen=True, slots=True)
class Participants:
    """Who trains together.

    world: all ranks. device: this rank's. dealt: those that batches are dealt to; None for all.
    told_by: all ranks, where several of them take the same share. replicas: how many share a batch,
    where those are not the ranks. spread: how gradients lie over the ranks when optimizers step.
    """

    world: Communicator
    device: torch.device
    dealt: Communicator | None = None
    told_by: Communicator | None = None
    replicas: int | None = None
    spread: Spread = field(default_factory=Whole)


class Parallelism(ShardedState):
    """A strategy in torch.

    supports: the options of `dream.update` that it honours, the others are refused; None for all.
    Declared here and nowhere else, with who says so and what to do instead.
    checkpoints: whether each rank can make its optimizers' state whole and spread it again.
    keras_block: what opens the block for Keras models; None where they are refused.
    keras_steps: whether `train_step` takes them too.
    registry_of_keras: whose modules Keras models are in a torch loop; None where in no one's.
    exchanged: how gradients become one, where that is not their mean.
    meets: whether models that were made before the block train as those that were made in it.
    fits: whether an update is begun again in smaller parts when memory runs out.
    chooses: whether blocks are measured, to choose which are computed again.
    whole: whether each rank has a model as its class made it, which `torch.jit` can compile.
    computes_on: the device to which batches come, where models lie on another.
    """

    supports: Mapping[str, Values] | None = None
    supports_for = "This strategy"
    instead = "Remove it."
    checkpoints = True
    keras_block: str | None = None
    keras_steps = True
    registry_of_keras: ModuleRegistry | None = None
    exchanged: Exchanged | None = None
    meets = False
    fits = False
    chooses = False
    whole = True
    computes_on: torch.device | None = None

    def __init__(self, plan: Plan) -> None:
        self.plan, self.name = plan, plan.spec.name
        self.update_options = UpdateOptions.of(plan.options)
        if self.supports is not None:
            self.update_options.only(self.supports, self.supports_for, self.instead)
        if not self.fits:
            self.update_options.refuse_fitting(f"{self.name!r} here")
        if not self.chooses:
            self.update_options.refuse_choosing(self.supports_for)
        ranks = self.connect()
        self.world, self.device, self.told_by = ranks.world, ranks.device, ranks.told_by
        _check_budget(self.update_options, self.device)
        self.dealt = ranks.dealt or ranks.world
        self.replicas = ranks.replicas or self.dealt.world_size
        self.divided = Divided(Division.asked(self.dealt.world_size, plan.options.get("shares")))
        self.shares, self.modes = Shares(), Modes()
        self.in_step = InStep(self.world)
        self.draws = CallDraws(
            self.dealt.rank, self.shares, self.modes, self.in_step, self.plan.randomness
        )
        among = self.dealt.world_size
        self.training = Training(self.update_options, self.device.type, among, ranks.spread)

    @abstractmethod
    def connect(self) -> Participants:
        """Meet the other ranks. Options have been checked."""

    @property
    def communicator(self) -> Communicator:
        """The user's."""
        return self.world

    def sharder(self) -> LoaderSharder:
        """Make what deals loaders to the ranks."""
        return LoaderSharder(
            self.dealt, self.divided, self.shares, self.plan.seed, self.plan.resyncs, self.told_by,
            self.training.micros, self.in_step, self.modes,
            parted=self.plan.options.get("input") == "sharded",
        )  # fmt: skip

    def distribute(self, module: nn.Module) -> nn.Module:
        """Have a module that was made before the block trained as one that was made in it."""
        return module

    def forward_backward(
        self, model: nn.Module, loss: Loss, weight: Weight | None
    ) -> Passes | None:
        """A model's passes in the explicit step; None for the loop's own five lines."""
        if self.world.world_size == 1:
            return None
        raise Unsupported(
            f"{self.name!r} supports only a plain training loop. Received: train_step. Write the "
            "loop, or use 'mirrored'."
        )

    def weigh(self, loss: Any, count: float) -> Any:
        """`loss`, a mean over `count` things here, scaled to be one of the things of all ranks."""
        if self.world.world_size == 1:
            return loss
        raise Unsupported(
            f"Under {self.name!r} the loss weight is set in the train step. Received: weigh(loss, "
            f"count={count!r}). Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def expect(self, objects: Sequence[Any]) -> None:
        """Be told what is about to be prepared together, before the first of it is."""

    def follow(self, loader: DataLoader[Any]) -> None:
        """A loader of the block's, or one that was prepared, is dealt."""

    def meet(self, module: nn.Module) -> None:
        """Have a module that was made before the block trained on first use, where it `meets`."""

    def take_hooks(self, items: Iterable[nn.Module | torch.Tensor]) -> None:
        """Have hooks on gradients that were registered before the block run as those in it."""

    def drop(self, optimizer: Optimizer) -> bool:
        """Let go of an optimizer that steps nothing of the strategy's; return whether."""
        del optimizer
        return False

    def subscribe(self, hooks: Hooks) -> None:
        """Say what is to be told while the block is open."""

    def opened(self) -> None:
        """The block begins."""

    def closed(self) -> None:
        """The block ends."""

    def alike(self) -> Iterable[Sequence[torch.Tensor]]:
        """Return parameters, a model's in a run, that are the same on every rank between steps, and
        their gradients after backward."""
        return ()

    def hear_last(self) -> None:
        """The block has ended, by no error: hear what no later step will."""

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        """The explicit step. weight: counts the things that a loss is the mean over."""
        passes = self.forward_backward(model, loss, weight)
        if passes is None:
            return plain_step(model, loss, optimizer)
        updates = self.training.updates
        return step_of(model, passes, optimizer, self.cuts(weight), updates, self.computes_on)

    def cuts(self, weight: Weight | None) -> Cuts:
        """Return how the explicit step cuts its batches. weight: counts a batch's things."""
        return cuts_of(self.training.most, self.dealt, self.shares, weight)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """The mean of each metric over every sample."""
        return evaluate.evaluate(model, data, metrics, self.dealt, device=self.computes_on)

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """Every parameter and buffer of a model by name, whole."""
        return tensors.whole_state(model)

    def checkpointer(self) -> Checkpointer:
        """What saves and loads its models, optimizers and generators."""
        if not self.checkpoints:
            raise Unsupported(
                f"Checkpoints under {self.name!r} are not supported yet. Received: save or load. "
                "Save strategy.full_state(model) instead."
            )
        return TorchCheckpointer(self)

    def loss_weight(self) -> float | None:
        """Return what the loss of this rank's last forward pass counts for."""
        return 1.0


def _check_budget(update_options: UpdateOptions, device: torch.device) -> None:
    if (
        update_options.recompute == AUTO
        and update_options.memory_budget is None
        and device.type == "cpu"
    ):
        raise ConfigurationError(
            "On the CPU the memory limit for activations must be given. Received: recompute='auto' "
            "without memory_budget. Pass memory_budget='2GB', or 0.5 for half of what they take."
        )


def alone(plan: Plan) -> Communicator:
    """The communicator of a process by itself."""
    return Communicator(Loop(), TorchTensors(), Members.all_of(plan.cluster))


def connect(plan: Plan) -> tuple[Communicator, Wire | None]:
    """The communicator of all ranks and the wire under it; none where there is one rank.

    DDP itself, and what ranks tell each other, always stand on torch's process group.
    """
    if plan.cluster.alone:
        return alone(plan), None
    if not plan.mixed:  # ranks of another framework are in no group of torch's
        collectives.start_group(plan.cluster, plan.transport)
    wire: Wire = registry.reduction("torch", plan.transport)(plan.cluster, plan.transport)
    return Communicator(wire, TorchTensors(), Members.all_of(plan.cluster)), wire
