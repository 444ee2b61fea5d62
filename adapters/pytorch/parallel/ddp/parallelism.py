"""`mirrored`, `multi_worker_mirrored` and `horovod`: replicas in step, carried by DDP; and
`single` where it has an option to honour."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dream._adapter import Loss, Plan, Step, Weight
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.call_hook import wrap_compile
from dream.adapters.pytorch.collectives import GradientHook, TorchWire
from dream.adapters.pytorch.compression import Exchanged, exchange_of
from dream.adapters.pytorch.data.pace import SharePace
from dream.adapters.pytorch.drift import DriftGuard
from dream.adapters.pytorch.hooks import BackwardLent, Hooks
from dream.adapters.pytorch.loose_parameters import LooseParameters
from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.adapters.pytorch.loss.differentiate import Differentiated, RowGradients
from dream.adapters.pytorch.loss.divisors import noting_floors
from dream.adapters.pytorch.loss.scaling import count_by_hand
from dream.adapters.pytorch.module import Make, ModuleRegistry
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.parallel.base import Parallelism, Participants, connect
from dream.adapters.pytorch.parallel.ddp.fallible import FallibleLoss
from dream.adapters.pytorch.parallel.ddp.module import DdpModule
from dream.adapters.pytorch.parallel.ddp.settings import DdpSettings, detaching
from dream.adapters.pytorch.parallel.one_copy import training as one_copy
from dream.adapters.pytorch.train_step import (
    Batch,
    Cuts,
    MicroPart,
    MicroParts,
    Passes,
    check_scalar,
)
from dream.adapters.pytorch.update.fitting import FittingStep
from dream.adapters.pytorch.update.gradient_check import watch
from dream.adapters.pytorch.update.norms_beside import NormsBeside
from dream.adapters.pytorch.update.scaling import Scaling
from dream.collectives import Wire
from dream.data.partition import Share, split
from dream.strategies import registry

KERAS_BLOCK = "dream.adapters.pytorch.keras.engine:open_block"


def ddp(plan: Plan) -> Parallelism:
    """Replicas of one framework, or of two."""
    if plan.mixed:
        one_copy.refuse_mixed(plan)
        made: Parallelism = registry.load("dream.adapters.pytorch.parallel.mixed:Mixed")(plan)
        return made
    return Ddp(plan)


class Synchronous(Parallelism):
    """Every rank a replica; gradients are averaged in backward.

    registry: its modules. distributes: whether there is anything to do to them. synchronises:
    whether BatchNorm can see all ranks' samples.
    """

    keras_block: str | None = KERAS_BLOCK

    synchronises = chooses = True
    wire: Wire | None

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.registry = ModuleRegistry(
            self.make(), self.world, self.shares, self.training,
            synchronises=self.synchronises and self.update_options.synchronises,
            recomputes=self.update_options.recompute,
            memory_budget=self.update_options.memory_budget,
            draws=self.draws,
        )  # fmt: skip
        self._watches: WeakKeyDictionary[Optimizer, list[RemovableHandle]] = WeakKeyDictionary()
        self.bare = (
            None if plan.mixed else LooseParameters(self.registry, self.shares, self._called())
        )
        of_kerass_own = self.update_options.recompute or self.update_options.casts
        if self.world.world_size > 1 and not plan.mixed and not of_kerass_own:
            self.registry_of_keras = self.registry
        self.guard = (
            None
            if plan.mixed
            else DriftGuard(
                self.world, self._roots, lambda: self.shares.dealt, self.training.masters
            )
        )
        self.distributes = self.world.world_size > 1 or self.training.runs_models

    @abstractmethod
    def make(self) -> Make:
        """Return what distributes a module, over `world` and the `wire` under it."""

    def _called(self) -> Callable[[], bool] | None:
        """What knows quickly whether a module was called; None where nothing does."""
        return None

    def connect(self) -> Participants:
        device = devices.choose(self.plan)
        self._tell_tuning = self.plan.begin_tuning()
        world, self.wire = connect(self.plan)
        return Participants(world, device)

    def subscribe(self, hooks: Hooks) -> None:
        if self.distributes:
            hooks.made("module", self.registry.add)
            hooks.wrap("compile", wrap_compile)
            hooks.wrap("detach", detaching)
        if self.world.world_size > 1:
            hooks.made("optimizer", self.adopt)
            hooks.wrap("param_group", self.registry.grown)
            if self.bare is not None:
                hooks.wrap("backward", self.bare.wrap)

    @property
    def meets(self) -> bool:  # type: ignore[override]
        return self.distributes

    def meet(self, module: nn.Module) -> None:
        self.registry.add(module)

    def _roots(self) -> list[nn.Module]:
        return [root.module for root in sorted(self.registry.roots, key=lambda root: root.number)]

    def drop(self, optimizer: Optimizer) -> bool:
        reduced = self.registry.reduced()
        if any(id(parameter) in reduced for parameter in parameters_of(optimizer)):
            return False
        if optimizer in self._watches:
            for handle in self._watches.pop(optimizer):
                handle.remove()
        return True

    def closed(self) -> None:
        self._tell_tuning()

    def distribute(self, module: nn.Module) -> nn.Module:
        if self.distributes:
            self.registry.distribute(module).prepare()
        return module

    def adopt(self, optimizer: Optimizer) -> None:
        if self.world.world_size > 1 and optimizer not in self._watches:
            if self.bare is not None:
                self.bare.watch(optimizer)
            self._watches[optimizer] = [
                watch(optimizer, self.registry),
                *([] if self.guard is None else [self.guard.watch(optimizer)]),
            ]


class Averaging(Synchronous):
    """Gradients are averaged while backward runs, bucket by bucket.

    averages_after: once it has ended, since they come by passes within it."""

    averages_after = False

    def __init__(self, plan: Plan) -> None:
        self._lent = BackwardLent()
        super().__init__(plan)
        self._backward.stamped = self.guard
        self.registry.row_leaves = self._backward.row_leaves
        if self.guard is not None:
            self.guard.rows = self._backward.row_leaves
        if self.bare is not None:
            self._backward.beside = self.bare.multiply
            if self.training.updates is None:
                self.bare.weighed = self._backward

    def make(self) -> Make:
        self._backward = WeighedBackward(
            self.world,
            self.training.updates,
            strict=self.update_options.strict or self.update_options.fits,
            lent=self._lent,
        )
        self._backward.reader.untraced.off = self.update_options.fits
        hook: GradientHook | None = None
        riders = None
        if self.wire is not None:
            exchange = exchange_of(self.update_options, self.wire, self.world)
            if exchange is None and isinstance(self.wire, TorchWire):
                hook, riders = self.wire.gradient_hook, self.wire.riders
            else:
                exchanged = Exchanged(exchange, self.wire, self.world.world_size)
                hook = exchanged.hook
                self.exchanged = None if exchange is None else exchanged
        self._reducing = dict(self.plan.options)
        self._once = one_copy.asked(self.plan, self.update_options, self.device, self.wire)
        if self._once is not None:
            self.keras_block = None
        settings = DdpSettings(self._reducing, hook, riders, self._once, after=self.averages_after)
        return partial(DdpModule, settings=settings, backward=self._backward)

    def _called(self) -> Callable[[], bool]:
        return self._backward.waits

    def alike(self) -> Iterable[Sequence[torch.Tensor]]:
        if self._once is not None or self.training.updates is not None:
            return ()
        bare = [p for each in self.registry.bare.values() if (p := each()) is not None]
        return [*(root.trained for root in self.registry.roots), bare]

    def subscribe(self, hooks: Hooks) -> None:
        super().subscribe(hooks)
        if self.distributes:
            hooks.wrap("backward", self._backward.wrap)
            hooks.wrap("clamp", noting_floors)
            if self.registry.synchronises:
                hooks.wrap("batch_norm", NormsBeside(self.registry).wrap)
            self._backward.script_hooks.subscribe(hooks)
            self.shares.follow_by(self._backward.reader)
            if self.world.world_size > 1:
                hooks.wrap("grad", RowGradients(self._backward, self.world).wrap)
                hooks.wrap("grad", Differentiated(self._backward, self.world).wrap)
        if self.world.world_size > 1 and self.plan.options.get("shares") == "auto":
            self._follow_speeds(hooks)

    def _follow_speeds(self, hooks: Hooks) -> None:
        pace = SharePace(self.world, self.divided, self.device)
        self.divided.draw, self.shares.given = pace.draw, pace.given
        hooks.wrap("backward", pace.wrap)  # around all others, in which ranks may wait
        if self.registry.synchronises:
            hooks.made("module", pace.made)

    def take_hooks(self, items: Iterable[nn.Module | torch.Tensor]) -> None:
        if self.distributes:
            self._backward.script_hooks.take(items)

    def opened(self) -> None:
        self._backward.open(installed=self.distributes)

    def closed(self) -> None:
        self._backward.close()
        if self._once is not None:
            self._once.let_go()
        super().closed()

    def hear_last(self) -> None:
        self._backward.hear_late()

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        if self.update_options.fits:
            return self._fitting_step(model, loss, optimizer, weight)
        if self._once is None:
            return super().train_step(model, loss, optimizer, weight)
        root = self.registry.distribute(model)
        assert isinstance(root, DdpModule)
        self.adopt(optimizer)
        step = super().train_step(model, loss, optimizer, weight)
        return self._once.step(optimizer, lambda: root.copy, step)

    def _fitting_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        root, updates = self.registry.distribute(model), self.training.updates
        assert isinstance(root, DdpModule)
        assert updates is not None
        passes = WeighedLoss(root, loss, self._backward, self.training.scaling)
        return FittingStep(
            model,
            FallibleLoss(passes, root, self._backward, self.world),
            optimizer,
            MicroParts(self.training.most, self.shares, weight),
            updates,
        )

    def loaded(self) -> None:
        if self._once is not None:
            self._once.loaded()

    def forward_backward(
        self, model: nn.Module, loss: Loss, weight: Weight | None
    ) -> Passes | None:
        if not self.distributes:
            return None
        root = self.registry.distribute(model)
        assert isinstance(root, DdpModule)
        return WeighedLoss(root, loss, self._backward, self.training.scaling)

    def cuts(self, weight: Weight | None) -> Cuts:
        return MicroParts(self.training.most, self.shares, weight)

    def weigh(self, loss: Any, count: float) -> Any:
        return count_by_hand(loss, count) if self.distributes else loss

    def loss_weight(self) -> None:
        """A loss is global once its backward has ended."""


@final
class Ddp(Averaging):
    """Every rank has the whole of an optimizer's state."""

    fits = True


class PartCalls(Protocol):
    """A distributed module, as an explicit step calls it."""

    def call_part(
        self, share: Share | None, args: tuple[Any, ...], *, first: bool, last: bool
    ) -> Any:
        """Call it on one of an update's micro-batches."""


@final
class WeighedLoss(Passes):
    """Many ranks. The loss travels beside the gradients, with the last micro-batch."""

    def __init__(
        self, root: PartCalls, loss: Loss, backward: WeighedBackward, scaling: Scaling | None
    ) -> None:
        self._root, self._loss, self._weighed = root, loss, backward
        self._scaling = scaling
        self._value = torch.zeros(())

    def run(self, batch: Batch, part: MicroPart, *, first: bool, last: bool) -> None:
        self.backward(self.forward(batch, part, first=first, last=last))

    def forward(self, batch: Batch, part: MicroPart, *, first: bool, last: bool) -> torch.Tensor:
        """Return the loss of a micro-batch."""
        inputs, target = split(batch)
        output = self._root.call_part(part.share, inputs, first=first, last=last)
        value = check_scalar(self._loss(output, target))
        return value if part.count is None else count_by_hand(value, part.count)

    def backward(self, value: torch.Tensor) -> None:
        """Differentiate it; it is global after an update's last."""
        run = self._weighed.around(torch.autograd.backward)
        (run if self._scaling is None else self._scaling.around(run))(value)
        self._value = value.detach()

    def told(self) -> torch.Tensor:
        return self._value
