"""`parameter_server`: workers that do not wait for one another, and servers that own the model.

TensorFlow's own ParameterServerStrategy is not used: Keras 3's `fit` does not run under it, its
count of updates is not atomic, and nothing bounds how stale a worker is.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Asynchronous, Metric, Plan, Step
from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream._topology import Cluster, Topology
from dream.adapters.keras.asynchronous.block import Block
from dream.adapters.keras.asynchronous.models import Models
from dream.adapters.keras.asynchronous.owner import KerasOwner
from dream.adapters.keras.asynchronous.pushing import Pushing
from dream.adapters.keras.asynchronous.training import Training
from dream.adapters.tensorflow import evaluate as evaluation
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.data import shard_of_rank
from dream.adapters.tensorflow.engine import example, explained
from dream.adapters.tensorflow.parallel.asynchronous.dealing import Leased
from dream.adapters.tensorflow.parallel.asynchronous.machine import TensorFlowMachine
from dream.adapters.tensorflow.parallel.asynchronous.step import pushed_step
from dream.adapters.tensorflow.tensors import TensorFlowTensors
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
        self._serves = self._roles.serves(self._place.rank)
        device = "CPU:0" if self._serves else runtime.local_device(self._place, plan.devices)
        self._topology = Topology.of(self._place, num_replicas=self._roles.workers, device=device)
        self._training: Training | None = None
        self._block: Block | None = None
        self._models: Models | None = None

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
        if self._serves:
            owner = KerasOwner(TensorFlowMachine())
            serving.serve(self._place, self._roles, self._rules, owner)
        if self._block is None:
            self._begin()
        assert self._block is not None
        self._block.enter()

    def exit(self) -> None:
        assert self._block is not None
        self._block.exit()

    def _begin(self) -> None:
        logger.info("parameter_server: rank 0 is the chief; %s", self._roles)
        in_step = self._rules.bound == 0
        rank = self._place.rank
        client = Client.join(self._place, self._roles, in_step=in_step)
        if client is None:
            logger.warning("worker of rank %d came back after the end of training", rank)
            serving.leave()
        atexit.register(client.leave)
        training = Training(client, self._roles, rank, TensorFlowMachine(), in_step=in_step)
        self._training = training
        steps = Pushing(training, example, explained)
        self._models = Models(steps, self._plan.seed, training.take, "parameter_server")
        self._block = Block(self._models)

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        training, models = self._working()
        if isinstance(item, keras.Model):
            return models.take(item)
        if isinstance(item, keras.optimizers.Optimizer):
            return training.take(item)
        return Leased(item, training)

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        training, _ = self._working()
        training.take(optimizer)
        return pushed_step(training, model, loss, optimizer, weight)

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """By each worker for itself, on the newest parameters: it may be alone."""
        self._working()[0].refresh()
        alone = Communicator(Loop(), TensorFlowTensors(), Members.all_of(Cluster()))
        whole = data.whole if isinstance(data, Leased) else data
        return evaluation.evaluate(
            model, whole, metrics, alone, shard_of_rank(0, 1), _here, resyncs=None
        )

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            "Under 'parameter_server' a loss is weighed by the step. Received: weigh(loss, "
            f"count={count!r}). Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        self._working()[0].refresh()
        return {v.path: np.asarray(v) for v in model.variables}

    def staleness(self) -> Staleness:
        return self._working()[0].client.staleness()

    def _working(self) -> tuple[Training, Models]:
        if self._training is None or self._models is None:
            raise ConfigurationError(
                "The block is not open yet. Received: a call before `with dream.strategy(...)`. "
                "Call it inside the block or after it."
            )
        return self._training, self._models


def _here(function: Callable[..., Any], batch: tuple[Any, ...]) -> list[tf.Tensor]:
    return [function(*batch)]
