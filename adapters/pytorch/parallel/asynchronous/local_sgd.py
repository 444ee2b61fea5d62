"""`local_sgd`: replicas step alone, and are averaged every few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream import _registry
from dream._adapter import Adapter, Metric, Plan, Step
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.pytorch import collectives, devices, evaluation, saving, state
from dream.adapters.pytorch.data.loader import Dealer
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import KerasEntry
from dream.adapters.pytorch.parallel.asynchronous.averaging import Averages
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.step import check_scalar
from dream.adapters.pytorch.tensors import TorchTensors
from dream.collectives import Communicator, Loop, Members
from dream.data.partition import split

_KERAS = "dream.adapters.pytorch.parallel.asynchronous.keras_local_sgd:open_block"


@final
class LocalSgd(Adapter):
    """Every rank a replica. Between averages a rank's parameters are its own; they are the same
    on every rank at the end of each pass over a loader."""

    def __init__(self, plan: Plan) -> None:
        every = plan.options["every"]
        assert isinstance(every, int)
        self._topology = Topology.of(
            plan.cluster,
            num_replicas=plan.cluster.world_size,
            device=str(devices.choose(plan)),
        )
        self._communicator = _connect(plan)
        self._shares = Shares()
        self._averages = Averages(self._communicator, self._shares, every)
        self._dealer = Dealer(self._communicator, self._shares, plan.seed)
        self._patches = Patches()
        self._keras = KerasEntry(plan, self._communicator, _KERAS)

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def enter(self) -> None:
        replace = self._patches.replace
        deals = self._dealer.wrap_init(DataLoader.__init__)
        replace(DataLoader, "__init__", self._averages.wrap_loader(deals))
        saving.enter(replace)
        if self._topology.world_size > 1:
            replace(Optimizer, "__init__", self._watched(Optimizer.__init__))
        self._keras.enter()

    def exit(self) -> None:
        self._keras.exit()
        self._patches.restore()

    def _watched(self, init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def wrapped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._averages.watch(optimizer)

        return wrapped

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if (prepared := self._keras.prepare(item)) is not None:
            return prepared
        if isinstance(item, DataLoader):
            self._dealer.deal(item)
            self._averages.end_passes(item)
        elif isinstance(item, Optimizer) and self._topology.world_size > 1:
            self._averages.watch(item)
        return item

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        if weight is not None:
            raise Unsupported(
                "Replicas that step alone do not know each other's counts. Received: weight= under "
                "'local_sgd'. Use 'mirrored', or leave weight out."
            )
        if not isinstance(optimizer, Optimizer):
            raise Unsupported(
                "Under 'local_sgd' Keras models on torch train by fit. Received: train_step with "
                f"{type(optimizer).__name__}. Use model.fit, or Keras on TensorFlow."
            )
        self._prepare(optimizer)

        def step(*batch: Any) -> torch.Tensor:
            """Returns this rank's own loss: nothing travels between two averages."""
            inputs, target = split(batch)
            self._averages.start()
            optimizer.zero_grad(set_to_none=True)
            value = check_scalar(loss(model(*inputs), target))
            value.backward()
            optimizer.step()
            return value.detach()

        return step

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        self._averages.settle()
        return evaluation.evaluate(model, data, metrics, self._communicator)

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            "Replicas that step alone do not know each other's counts. Received: weigh(loss, "
            f"count={count!r}) under 'local_sgd'. Use 'mirrored'."
        )

    def loss_weight(self) -> float:
        return self._shares.weight(())

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self._averages.settle()
        return state.whole(model)


def _connect(plan: Plan) -> Communicator:
    members, tensors = Members.all_of(plan.cluster), TorchTensors()
    if plan.cluster.alone:
        return Communicator(Loop(), tensors, members)
    if plan.mixed:
        raise Unsupported(
            "'local_sgd' averages torch's optimizers. Received: ranks of two frameworks. Use "
            "'horovod'."
        )
    collectives.start_group(plan.cluster, plan.reduction)
    wire = _registry.reduction("torch", plan.reduction)(plan.cluster, plan.reduction)
    return Communicator(wire, tensors, members)
