"""What every strategy that splits a model is: a place in a mesh, dealt loaders, and its parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Adapter, Metric, Plan
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.pytorch import devices, evaluate, hooks
from dream.adapters.pytorch.data.loader import LoaderSharder
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.parallel.split.place import Place
from dream.adapters.pytorch.update.gradients import Spread
from dream.collectives import Communicator
from dream.update.update import Knobs


class SplitAdapter(Adapter):
    """A strategy whose ranks hold parts of a model.

    Batches are dealt along the data axis: ranks that hold parts of one copy get the same share.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._knobs = Knobs.of(plan.options)
        self._check_knobs()
        self._device = devices.choose(plan)
        self._place = self._connect(plan)
        self._topology = Topology.of(
            plan.cluster, num_replicas=self._dealt.world_size, device=str(self._device)
        )
        self._shares = Shares()
        ranks = self._dealt.world_size
        self._training = Training(self._knobs, self._device.type, ranks, self._spread())
        told_by = self._place.world if self._place.mesh.model > 1 else None
        self._dealer = LoaderSharder(
            self._dealt, self._shares, plan.seed, told_by=told_by, micros=self._training.micros
        )
        self._patches = Patches()

    @abstractmethod
    def _connect(self, plan: Plan) -> Place:
        """The rank's place in the strategy's mesh."""

    @abstractmethod
    def _check_knobs(self) -> None:
        """Refuse those that cannot be honoured."""

    @abstractmethod
    def _spread(self) -> Spread:
        """How gradients lie over the ranks when an optimizer steps."""

    @abstractmethod
    def _take_model(self, model: nn.Module) -> nn.Module:
        """Split a model in place."""

    @abstractmethod
    def _take_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Have an optimizer step this rank's part only."""

    @property
    def _dealt(self) -> Communicator:
        """The ranks that batches are dealt to."""
        return self._place.data

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._place.world

    def enter(self) -> None:
        replace = self._patches.replace
        replace(DataLoader, "__init__", self._dealer.wrap_init(DataLoader.__init__))
        hooks.enter(replace)

    def exit(self) -> None:
        self._training.exit()
        self._patches.restore()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, DataLoader):
            self._dealer.deal(item)
        elif isinstance(item, nn.Module):
            return self._take_model(item)
        elif isinstance(item, Optimizer):
            return self._take_optimizer(item)
        return item

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluate.evaluate(model, data, metrics, self._dealt)

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            f"Under {self._plan.spec.name!r} a loss is weighed by the step. Received: weigh(loss, "
            f"count={count!r}). Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def loss_weight(self) -> float:
        return self._shares.weight(())
