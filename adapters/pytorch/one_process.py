"""One process that drives several devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Adapter, Metric, Plan, Step
from dream._batch import split
from dream._knobs import Knobs
from dream._topology import Topology
from dream.adapters.pytorch import evaluation, replicas, saving, state
from dream.adapters.pytorch.data_parallel import rows_of
from dream.adapters.pytorch.keras_refusal import forbid_fits, refuse_keras
from dream.adapters.pytorch.loader import Dealer
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.shares import Shares
from dream.adapters.pytorch.slot import Slot, set_slot, slot_of, wrap_compile
from dream.adapters.pytorch.tensors import TorchTensors
from dream.adapters.pytorch.weighing import count_of
from dream.communication import Communicator, Loop, Members


class OneProcess(Adapter):
    """Batches are whole as the loop sees them, and cut at each call for those that share them.

    honours: the knobs that are honoured, and which values of each; none for any.
    """

    honours: Mapping[str, Collection[object]] = {}

    def __init__(self, plan: Plan) -> None:
        self._name = plan.spec.name
        self._knobs = Knobs.of(plan.options)
        self._knobs.only(self.honours, f"A model under {plan.spec.name!r}")
        self._team = self._gather(plan)
        self._topology = Topology.of(
            plan.cluster, num_replicas=self._team.size, device=str(self._team.first)
        )
        self._communicator = Communicator(Loop(), TorchTensors(), Members.all_of(plan.cluster))
        self._dealer = Dealer(self._communicator, Shares(), plan.seed)
        self._patches = Patches()
        self._settled: WeakSet[nn.Module] = WeakSet()

    @abstractmethod
    def _gather(self, plan: Plan) -> replicas.Team:
        """Who runs the parts of a batch."""

    @abstractmethod
    def _settle(self, model: nn.Module) -> None:
        """Put a model where it is to run. Called once for each."""

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def enter(self) -> None:
        forbid_fits(self._patches, self._name)
        replace = self._patches.replace
        replace(DataLoader, "__init__", self._dealer.wrap_init(DataLoader.__init__))
        replace(torch, "save", saving.on_rank(0, torch.save))
        replace(nn.Module, "__init__", self._wrap_init(nn.Module.__init__))
        replace(nn.Module, "compile", wrap_compile(nn.Module.compile))

    def exit(self) -> None:
        self._patches.restore()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        for item in objects:
            refuse_keras(item, self._name)
            if isinstance(item, DataLoader):
                self._dealer.deal(item)
            elif isinstance(item, nn.Module):
                self._take(item)
            elif isinstance(item, Optimizer):
                self._watch(item)
        return objects

    def _watch(self, optimizer: Optimizer) -> None:
        """An optimizer was made or given. Called at least once for each."""

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        refuse_keras(model, self._name)
        self._take(model)
        self._watch(optimizer)

        def step(*batch: Any) -> torch.Tensor:
            parts = self._team.scatter(split(batch))
            optimizer.zero_grad(set_to_none=True)
            counts = [_count(part, weight) for part in parts]
            value = replicas.train(self._team, model, loss, parts, counts)
            optimizer.step()
            return value

        return step

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        self._take(model)
        return evaluation.evaluate(model, data, metrics, self._communicator)

    def weigh(self, loss: Any, count: Any) -> Any:
        count_of(count)
        return loss

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        return state.whole(model)

    def _take(self, model: nn.Module) -> None:
        if model not in self._settled:
            self._settled.add(model)
            self._settle(model)
            if not isinstance(slot_of(model), replicas.Parallel):
                set_slot(model, replicas.Parallel(model, self._team))

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            refuse_keras(module, self._name)
            init(module, *args, **kwargs)
            if not isinstance(module, fx.GraphModule) and not isinstance(slot_of(module), Slot):
                set_slot(module, replicas.Parallel(module, self._team))

        return wrapped


def _count(part: Any, weight: Callable[..., Any] | None) -> float:
    """How many things the loss of a part is the mean over."""
    inputs, target = part
    if weight is not None:
        return count_of(weight(*inputs, target))
    return float(rows_of(part) or 1)
