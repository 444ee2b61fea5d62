"""`local_sgd`: replicas step alone, and are averaged every few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Adapter, Metric, Plan, Step
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.keras.asynchronous.alone import Alone, by_hand
from dream.adapters.keras.asynchronous.averaging import Averages
from dream.adapters.keras.asynchronous.block import Block
from dream.adapters.keras.asynchronous.catching import Catching
from dream.adapters.keras.asynchronous.models import Models
from dream.adapters.tensorflow import evaluate as evaluation
from dream.adapters.tensorflow.data import ShardedDataset, shard_of_rank
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.adapters.tensorflow.loss import count_of
from dream.adapters.tensorflow.parallel import replicas
from dream.adapters.tensorflow.parallel.asynchronous.machine import TensorFlowMachine
from dream.adapters.tensorflow.step import LocalStep, build
from dream.collectives import Communicator


@final
class LocalSgd(Adapter):
    """Every rank a replica. Between averages a rank's parameters are its own; they are the same
    on every rank at the end of each pass over the data."""

    def __init__(self, plan: Plan) -> None:
        every = plan.options["every"]
        assert isinstance(every, int)
        if plan.mixed:
            raise Unsupported(
                "'local_sgd' averages the optimizers of one framework. Received: ranks of two. Use "
                "'horovod'."
            )
        alone = plan.cluster.alone
        self._who = replicas.one(plan) if alone else replicas.synchronous(plan)
        engine = ProcessEngine(self._who.communicator, plan)
        self._machine = TensorFlowMachine()
        self._averages = Averages(engine, self._machine, every)
        self._catching = Catching(by_hand)
        steps = Alone(engine, self._machine, self._averages, self._catching)
        self._models = Models(steps, plan.seed, self._catching.take, "local_sgd")
        self._block = Block(self._models)

    @property
    def topology(self) -> Topology:
        return self._who.topology

    @property
    def communicator(self) -> Communicator:
        return self._who.communicator

    def enter(self) -> None:
        self._block.enter()

    def exit(self) -> None:
        self._block.exit()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, keras.Model):
            return self._models.take(item)
        if isinstance(item, keras.optimizers.Optimizer):
            return self._catching.take(item)
        cut = shard_of_rank(self.topology.rank, self.topology.world_size)
        return Settled(ShardedDataset(item, cut, self.communicator), self._averages)

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        if weight is not None:
            raise Unsupported(
                "Replicas that step alone do not know each other's counts. Received: weight= under "
                "'local_sgd'. Use 'mirrored', or leave weight out."
            )
        self._catching.take(optimizer)
        inner = LocalStep(model, loss, optimizer, None, None, ranks=True)
        run: Callable[..., Any] | None = None

        def local(*batch: Any) -> tuple[Any, list[Any]]:
            with self._catching.gradients(self._averages.order) as gradients:
                value = inner(*batch)
            return value, gradients

        def step(*batch: Any) -> tf.Tensor:
            """Returns this rank's own loss: nothing travels between two averages."""
            nonlocal run
            batch = self._machine.tensors(batch)
            with translated():
                if run is None:
                    build(model, optimizer, batch)
                    self._averages.begin(model, optimizer)
                    run = self._machine.differentiate(
                        local, self._averages.order, eager=False, one_length=False
                    )
                value, present = run(batch, self._averages.gradient)
                self._averages.step(float(count_of(batch)), present)
            return value

        return step

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        self._averages.settle()
        dealt = data.dealt if isinstance(data, Settled) else data
        cut = shard_of_rank(self.topology.rank, self.topology.world_size)
        return evaluation.evaluate(
            model, dealt, metrics, self.communicator, cut, _here, resyncs=None
        )

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            "Replicas that step alone do not know each other's counts. Received: weigh(loss, "
            f"count={count!r}) under 'local_sgd'. Use 'mirrored'."
        )

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        self._averages.settle()
        return {v.path: np.asarray(v) for v in model.variables}


@final
class Settled:
    """A dealt dataset, after each pass over which the replicas are alike."""

    def __init__(self, dealt: ShardedDataset, averages: Averages) -> None:
        self.dealt, self._averages = dealt, averages

    def __len__(self) -> int:
        return len(self.dealt)

    def __iter__(self) -> Iterator[Any]:
        yield from self.dealt
        self._averages.settle()


def _here(function: Callable[..., Any], batch: tuple[Any, ...]) -> list[tf.Tensor]:
    return [function(*batch)]
