"""`single`: one device, the oracle. The order of shuffled data comes from seed and epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Adapter, Metric, Plan, Step
from dream._topology import Topology
from dream.adapters.pytorch import devices, evaluation, saving, state
from dream.adapters.pytorch.data.loader import Dealer
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import KerasEntry
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.step import plain_step
from dream.adapters.pytorch.tensors import TorchTensors
from dream.adapters.pytorch.weighing import count_of
from dream.collectives import Communicator, Loop, Members


@final
class Single(Adapter):
    """One process, one device."""

    def __init__(self, plan: Plan) -> None:
        device = devices.choose(plan)
        self._topology = Topology.of(plan.cluster, num_replicas=1, device=str(device))
        self._communicator = Communicator(Loop(), TorchTensors(), Members.all_of(plan.cluster))
        self._dealer = Dealer(self._communicator, Shares(), plan.seed)
        self._patches = Patches()
        self._keras = KerasEntry(plan, self._communicator)

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def enter(self) -> None:
        self._patches.replace(DataLoader, "__init__", self._dealer.wrap_init(DataLoader.__init__))
        saving.enter(self._patches.replace)
        self._keras.enter()

    def exit(self) -> None:
        self._keras.exit()
        self._patches.restore()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, DataLoader):
            self._dealer.deal(item)
        distributed = self._keras.prepare(item)
        return item if distributed is None else distributed

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        keras_step = self._keras.train_step(model, loss, optimizer, weight)
        if keras_step is not None:
            return keras_step
        return plain_step(model, loss, optimizer)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluation.evaluate(model, data, metrics, self._communicator)

    def weigh(self, loss: Any, count: Any) -> Any:
        count_of(count)
        return loss

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        return state.whole(model)
