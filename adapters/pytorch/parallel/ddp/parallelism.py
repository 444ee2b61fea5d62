"""`mirrored`, `multi_worker_mirrored` and `horovod`: replicas in step, carried by DDP; and
`single` where it has an option to honour."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from dream import _registry
from dream._adapter import Plan
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.call_hook import wrap_compile
from dream.adapters.pytorch.collectives import GradientHook, TorchWire
from dream.adapters.pytorch.compression.exchange import Exchanged
from dream.adapters.pytorch.compression.exchanges import exchange_of
from dream.adapters.pytorch.gradient_check import watch
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.loss import MicroWeights, weight_of
from dream.adapters.pytorch.module import Make, ModuleRegistry
from dream.adapters.pytorch.parallel.base import Parallelism, Participants, connect
from dream.adapters.pytorch.parallel.ddp.module import DdpModule, DdpSettings
from dream.adapters.pytorch.train_step import Batch, Passes, check_scalar
from dream.adapters.pytorch.update.scaling import Scaling
from dream.collectives import Wire
from dream.data.partition import split
from dream.update import tuning

KERAS_BLOCK = "dream.adapters.pytorch.keras.engine:open_block"


def ddp(plan: Plan) -> Parallelism:
    """Replicas of one framework, or of two."""
    if plan.mixed:
        made: Parallelism = _registry.load("dream.adapters.pytorch.parallel.mixed:Mixed")(plan)
        return made
    return Ddp(plan)


class Synchronous(Parallelism):
    """Every rank a replica; gradients are averaged in backward.

    registry: its modules. distributes: whether there is anything to do to them. synchronises:
    whether BatchNorm can see all ranks' samples.
    """

    keras_block = KERAS_BLOCK

    synchronises = True
    wire: Wire | None

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.registry = ModuleRegistry(
            self.make(), self.world, self.shares, self.training,
            synchronises=self.synchronises and self.knobs.synchronises,
            recomputes=self.knobs.recompute,
        )  # fmt: skip
        self.distributes = self.world.world_size > 1 or self.training.runs_models

    @abstractmethod
    def make(self) -> Make:
        """Return what distributes a module, over `world` and the `wire` under it."""

    def connect(self) -> Participants:
        device = devices.choose(self.plan)
        self._tell_tuning = tuning.begin(self.plan)
        world, self.wire = connect(self.plan)
        return Participants(world, device)

    def subscribe(self, hooks: Hooks) -> None:
        if self.distributes:
            hooks.made("module", self.registry.add)
            hooks.wrap("compile", wrap_compile)
        if self.world.world_size > 1:
            hooks.made("optimizer", self.adopt)

    def closed(self) -> None:
        self._tell_tuning()

    def distribute(self, module: nn.Module) -> nn.Module:
        if self.distributes:
            self.registry.distribute(module).prepare()
        return module

    def adopt(self, optimizer: Optimizer) -> None:
        if self.world.world_size > 1:
            watch(optimizer, self.registry)

    def loss_weight(self) -> float:
        return self.registry.loss_weight()


@final
class Ddp(Synchronous):
    """Gradients are averaged while backward runs, bucket by bucket."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        updates = self.training.updates
        self._micro = None if updates is None else MicroWeights(self.world, updates)

    def make(self) -> Make:
        hook: GradientHook | None = None
        if self.wire is not None:
            exchange = exchange_of(self.knobs, self.wire, self.world)
            if exchange is None and isinstance(self.wire, TorchWire):
                hook = self.wire.gradient_hook
            else:
                exchanged = Exchanged(exchange, self.wire, self.world.world_size)
                hook = exchanged.hook
                self.exchanged = None if exchange is None else exchanged
        return partial(DdpModule, settings=DdpSettings(self.plan.options, hook))

    def forward_backward(
        self, model: nn.Module, loss: Callable[..., Any], weight: Callable[..., Any] | None
    ) -> Passes | None:
        if not self.distributes:
            return None
        root = self.registry.distribute(model)
        assert isinstance(root, DdpModule)
        return CarriedLoss(root, loss, self.training.scaling)

    def weigh(self, loss: Any, count: float) -> Any:
        self.registry.weigh_by_hand(count)
        if self._micro is not None:
            return self._micro.weigh(loss, count)
        return loss * weight_of(self.world, count)


@final
class CarriedLoss(Passes):
    """Many ranks under DDP. The loss travels in the gradients' own bucket, with the last
    micro-batch: backward is started from it and from a parameter of no other use, whose gradient
    it is, and DDP averages that with the rest."""

    def __init__(self, root: DdpModule, loss: Callable[..., Any], scaling: Scaling | None) -> None:
        self._root, self._loss = root, loss
        self._backward = torch.autograd.backward if scaling is None else scaling.backward

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        inputs, target = split(batch)
        output, carried = self._root.call_with_carrier(
            inputs, empty=weight == 0.0, first=first, last=last
        )
        value = check_scalar(self._loss(output, target))
        if weight != 1.0:
            value = value * weight
        self._backward((value, carried), (None, value.detach().to(carried.dtype)))

    def told(self) -> torch.Tensor:
        return self._root.carried
