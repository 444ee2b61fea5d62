"""`mirrored`, `multi_worker_mirrored` and `horovod`: replicas in step, carried by DDP; and
`single` where it has a knob to honour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream import _registry
from dream._adapter import Adapter, Metric, Plan, Step
from dream._topology import Topology
from dream.adapters.pytorch import collectives, devices, evaluation, saving, state
from dream.adapters.pytorch.compression.choosing import exchanged_of
from dream.adapters.pytorch.compression.hook import Exchanged
from dream.adapters.pytorch.data.loader import Dealer
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import KerasEntry
from dream.adapters.pytorch.parallel.ddp.bucket_hook import Buckets
from dream.adapters.pytorch.parallel.ddp.hooks import GradientHook, TorchWire
from dream.adapters.pytorch.parallel.ddp.modules import MakeRoot, Modules
from dream.adapters.pytorch.parallel.ddp.optimizers import Guard
from dream.adapters.pytorch.parallel.ddp.root import Root
from dream.adapters.pytorch.parallel.mixed.root import MixedRoot
from dream.adapters.pytorch.parallel.mixed.told_loss import ToldLoss
from dream.adapters.pytorch.passes import step_of
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.slot import wrap_compile
from dream.adapters.pytorch.step import Carried, mixed_step, plain_step
from dream.adapters.pytorch.tensors import TorchTensors
from dream.adapters.pytorch.update.cut import cuts_of
from dream.adapters.pytorch.update.spread import Whole
from dream.adapters.pytorch.update.training import Training
from dream.adapters.pytorch.update.weighing import MicroWeights
from dream.adapters.pytorch.weighing import count_of, weight_of
from dream.collectives import Communicator, Loop, Members, Wire
from dream.update import tuning
from dream.update.update import Knobs


@final
class Synchronous(Adapter):
    """Every rank a replica; gradients are averaged while backward runs."""

    def __init__(self, plan: Plan) -> None:
        device = devices.choose(plan)
        self._topology = Topology.of(
            plan.cluster, num_replicas=plan.cluster.world_size, device=str(device)
        )
        knobs = _knobs_of(plan)
        self._tell_tuning = tuning.begin(plan)
        self._communicator, hook, exchanged = _connect(plan, knobs)
        self._shares = Shares()
        self._told, self._resyncs = ToldLoss(), plan.resyncs
        self._knobs = Training(knobs, device.type, plan.cluster.world_size, Whole())
        updates = self._knobs.updates
        self._modules = Modules(
            self._communicator, self._shares, plan.options, hook, self._kind_of_root(),
            updates, self._knobs.precision,
            synchronises=knobs.synchronises and not plan.mixed, recomputes=knobs.recompute,
        )  # fmt: skip
        self._knobs.watch(self._modules.called, self._modules.trained)
        self._micro = None if updates is None else MicroWeights(self._communicator, updates)
        self._roots = self._topology.world_size > 1 or self._knobs.runs_models
        self._dealer = Dealer(
            self._communicator, self._shares, plan.seed, plan.resyncs, micros=self._knobs.micros
        )
        self._guard = Guard(self._modules)
        self._patches = Patches()
        self._keras = KerasEntry(plan, self._communicator, exchanged=exchanged)

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def enter(self) -> None:
        replace = self._patches.replace
        replace(DataLoader, "__init__", self._dealer.wrap_init(DataLoader.__init__))
        saving.enter(replace)
        if self._roots:
            replace(nn.Module, "__init__", self._modules.wrap_init(nn.Module.__init__))
            replace(nn.Module, "compile", wrap_compile(nn.Module.compile))
        if self._topology.world_size > 1:
            replace(Optimizer, "__init__", self._guard.wrap_init(Optimizer.__init__))
        self._knobs.enter(self._patches)
        if self._resyncs is not None:
            backward = self._told.wrap_backward(torch.autograd.backward)
            replace(torch.autograd, "backward", backward)
        self._keras.enter()

    def exit(self) -> None:
        self._keras.exit()
        self._knobs.exit()
        self._tell_tuning()
        self._patches.restore()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, DataLoader):
            self._dealer.deal(item)
        elif (distributed := self._keras.prepare(item)) is not None:
            return distributed
        elif isinstance(item, Optimizer):
            self._knobs.take(item)
            if self._topology.world_size > 1:
                self._guard.watch(item)
        elif self._roots and isinstance(item, nn.Module):
            self._modules.distribute(item).prepare()
        return item

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        keras_step = self._keras.train_step(model, loss, optimizer, weight)
        if keras_step is not None:
            if self._knobs.updates is not None:
                self._knobs.updates.leave_to_step()
            return keras_step
        self._knobs.take(optimizer)
        if not self._roots:
            return plain_step(model, loss, optimizer)
        root = self._modules.distribute(model)
        if isinstance(root, MixedRoot):
            counted = root.samples if weight is None else _counts(weight)
            return mixed_step(root, loss, optimizer, counted, self._told)
        assert isinstance(root, Root)
        cut = cuts_of(self._knobs.most, self._communicator, self._shares, weight)
        passes = Carried(root, loss, self._knobs.scaling)
        return step_of(passes, optimizer, cut, self._knobs.updates)

    def _kind_of_root(self) -> MakeRoot:
        if self._resyncs is None:
            return Root
        return partial(MixedRoot, resyncs=self._resyncs, loss=self._told.last)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluation.evaluate(model, data, metrics, self._communicator, resyncs=self._resyncs)

    def weigh(self, loss: Any, count: Any) -> Any:
        counted = count_of(count)
        self._modules.weigh_by_hand(counted)
        if self._micro is not None:
            return self._micro.weigh(loss, counted)
        if self._resyncs is not None:  # counts travel with the gradients
            return loss
        return loss * weight_of(self._communicator, counted)

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        return state.whole(model)

    def loss_weight(self) -> float:
        return self._modules.loss_weight()


def _knobs_of(plan: Plan) -> Knobs:
    knobs = Knobs.of(plan.options)
    if plan.mixed:
        own = {"clip_norm": (), "clip_value": (), "sync_batch_norm": (False,)}
        knobs.only(own, "A rank beside ranks of another framework")
    return knobs


def _counts(weight: Callable[..., Any]) -> Callable[[tuple[Any, ...]], float]:
    return lambda batch: count_of(weight(*batch))


def _connect(
    plan: Plan, knobs: Knobs
) -> tuple[Communicator, GradientHook | None, Exchanged | None]:
    """The communicator, what DDP reduces with where that is not its own process group, and how
    gradients become one where that is not their mean.

    DDP itself, and what ranks tell each other, always stand on torch's process group.
    """
    members, tensors = Members.all_of(plan.cluster), TorchTensors()
    if plan.cluster.alone:
        return Communicator(Loop(), tensors, members), None, None
    reduction = plan.transport
    if not plan.mixed:  # ranks of another framework are in no group of torch's
        collectives.start_group(plan.cluster, reduction)
    wire: Wire = _registry.reduction("torch", reduction)(plan.cluster, reduction)
    communicator = Communicator(wire, tensors, members)
    exchanged = exchanged_of(knobs, wire, communicator)
    hook = exchanged.hook if exchanged else _hook(wire, plan.cluster.world_size)
    return communicator, hook, exchanged


def _hook(wire: Wire, world_size: int) -> GradientHook | None:
    if isinstance(wire, TorchWire):
        return wire.gradient_hook
    return Buckets(wire, world_size).hook
