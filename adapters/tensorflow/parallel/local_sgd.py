"""`local_sgd`: replicas step alone, and are averaged every few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Loss, Metric, Plan, Step, Weight
from dream._errors import Unsupported
from dream.adapters.keras.asynchronous.local_sgd import AveragedModel, averaging
from dream.adapters.tensorflow import evaluate as evaluation
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.adapter import Parallelism
from dream.adapters.tensorflow.data import ShardedDataset, shard_of_rank
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.adapters.tensorflow.keras.machine import TensorFlowMachine
from dream.adapters.tensorflow.loss import count_of
from dream.adapters.tensorflow.parallel import replicas
from dream.adapters.tensorflow.step import LocalStep, build
from dream.checkpoint.checkpointer import Checkpointer
from dream.data.partition import Division
from dream.update.local_sgd import refuse_weigh, refuse_weight


@final
class LocalSgd(Parallelism):
    """Every rank a replica. Between averages a rank's parameters are its own; they are the same
    on every rank at the end of each pass over the data."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if plan.mixed:
            raise Unsupported(
                "'local_sgd' averages the optimizers of one framework. Received: ranks of two. Use "
                "'horovod'."
            )
        alone = plan.cluster.alone
        if not alone:
            runtime.local_device(plan.cluster, plan.devices)
        who = replicas.one(plan) if alone else replicas.synchronous(plan)
        self._topology, self._communicator = who.topology, who.communicator
        self._cut = shard_of_rank(who.topology.rank, Division(who.topology.world_size))
        engine = ProcessEngine(who.communicator, plan)
        self._machine = TensorFlowMachine()
        self._averaged, self._caught, self._block = averaging(engine, self._machine, plan)

    def enter(self) -> None:
        self._block.enter()

    def exit(self) -> None:
        self._block.exit()

    def prepare_made(self, item: Any) -> Any:
        return self._block.prepare(item)

    def prepare_data(self, data: Any) -> Any:
        return SettledDataset(ShardedDataset(data, self._cut, self.communicator), self._averaged)

    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
        if weight is not None:
            refuse_weight()
        averaged, machine = self._averaged, self._machine
        self._caught.take(optimizer)
        inner = LocalStep(model, loss, optimizer, None, None, ranks=True)
        run: Callable[..., Any] | None = None

        def step(*batch: Any) -> tf.Tensor:
            """Return this rank's own loss: nothing travels between two averages."""
            nonlocal run
            batch = machine.tensors(batch)
            with translated():
                if run is None:
                    build(model, optimizer, batch)
                    averaged.begin(model, optimizer)
                    local, order = self._caught.of(inner, averaged.order), averaged.order
                    run = machine.differentiate(local, order, eager=False, one_length=False)
                value, present = run(batch, averaged.gradient)
                averaged.step(float(count_of(batch)), present)
            return value

        return step

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        self._averaged.settle()
        dealt = data.dealt if isinstance(data, SettledDataset) else data
        return evaluation.evaluate(model, dealt, metrics, self.communicator, self._cut)

    def checkpointer(self, model: Any) -> Checkpointer:
        del model
        assert self._block.held_by is not None
        return self._block.held_by()

    def weigh(self, loss: Any, count: Any) -> Any:
        refuse_weigh(count)

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        self._averaged.settle()
        return super().full_state(model)


@final
class SettledDataset:
    """A dealt dataset, after each pass over which the replicas are alike."""

    def __init__(self, dealt: ShardedDataset, averaged: AveragedModel) -> None:
        self.dealt, self._averaged = dealt, averaged

    def __len__(self) -> int:
        return len(self.dealt)

    def __iter__(self) -> Iterator[Any]:
        yield from self.dealt
        self._averaged.settle()
