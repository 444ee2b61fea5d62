"""`parameter_server`: workers that do not wait for one another, and servers that own the model."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Asynchronous, Metric, Plan, Step
from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream._topology import Cluster, Topology
from dream.adapters.pytorch import devices, evaluate, hooks, tensors
from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.keras.refusal import forbid_fits, refuse_keras
from dream.adapters.pytorch.parallel.asynchronous.loader import Dealer
from dream.adapters.pytorch.parallel.asynchronous.owner import TorchOwner
from dream.adapters.pytorch.parallel.asynchronous.step import pushed_step
from dream.adapters.pytorch.parallel.asynchronous.training import Training
from dream.adapters.pytorch.tensors import TorchTensors
from dream.collectives import Communicator, Loop, Members
from dream.parameter_server import serving
from dream.parameter_server.client import Client
from dream.parameter_server.staleness import Staleness


@final
class ParameterServer(Asynchronous):
    """One rank of the job, a worker or a server."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._place = plan, plan.cluster
        self._roles = serving.roles_of(self._place, plan.options)
        self._rules = serving.rules_of(self._place, plan.options)
        device = devices.choose(plan)
        self._topology = Topology.of(
            self._place, num_replicas=self._roles.workers, device=str(device)
        )
        self._patches = Patches()
        self._training: Training | None = None
        self._dealer: Dealer | None = None

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        raise Unsupported(
            "Workers of 'parameter_server' do not wait for one another, so there is nothing they "
            "do together. Received: strategy.communicator. Use strategy.staleness() for figures "
            "of the job, or a synchronous strategy."
        )

    def enter(self) -> None:
        if self._roles.serves(self._place.rank):
            serving.serve(self._place, self._roles, self._rules, TorchOwner())
        if self._training is None:
            self._begin()
        assert self._training is not None
        assert self._dealer is not None
        forbid_fits(self._patches, "parameter_server")
        replace = self._patches.replace
        replace(DataLoader, "__init__", self._dealer.wrap_init(DataLoader.__init__))
        replace(Optimizer, "__init__", self._training.wrap_init(Optimizer.__init__))
        replace(nn.Module, "__init__", self._training.rest.wrap_init(nn.Module.__init__))
        self._training.schedules.enter(self._patches)
        hooks.enter(replace)

    def exit(self) -> None:
        self._patches.restore()

    def _begin(self) -> None:
        logger.info("parameter_server: %s", self._roles)
        in_step = self._rules.bound == 0
        client = Client.join(self._place, self._roles, in_step=in_step)
        if client is None:
            logger.warning(
                "worker of rank %d came back after the end of training", self._place.rank
            )
            serving.leave()
        atexit.register(client.leave)
        self._training = Training(client, self._roles, self._place.rank, in_step=in_step)
        self._dealer = Dealer(self._training, self._plan.seed, self._roles.workers)

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        training, dealer = self._working()
        refuse_keras(item, "parameter_server")
        if isinstance(item, DataLoader):
            dealer.deal(item)
        elif isinstance(item, Optimizer):
            training.take(item)
        elif isinstance(item, nn.Module):
            training.rest.add(item)
        return item

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        training, _ = self._working()
        refuse_keras(model, "parameter_server")
        refuse_keras(optimizer, "parameter_server")
        training.take(optimizer)
        training.rest.add(model)
        return pushed_step(training, model, loss, optimizer, weight)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """By each worker for itself, on the newest parameters: it may be alone."""
        self._working()[0].refresh()
        alone = Communicator(Loop(), TorchTensors(), Members.all_of(Cluster()))
        with torch.no_grad():
            return evaluate.evaluate(model, data, metrics, alone)

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            "Under 'parameter_server' a loss is weighed by the step. Received: weigh(loss, "
            f"count={count!r}). Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self._working()[0].refresh()
        return tensors.whole_state(model)

    def staleness(self) -> Staleness:
        return self._working()[0].client.staleness()

    def _working(self) -> tuple[Training, Dealer]:
        if self._training is None or self._dealer is None:
            raise ConfigurationError(
                "The block is not open yet. Received: a call before `with dream.strategy(...)`. "
                "Call it inside the block or after it."
            )
        return self._training, self._dealer
