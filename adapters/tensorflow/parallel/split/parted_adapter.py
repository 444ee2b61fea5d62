"""What every strategy that puts whole layers on devices is: parts, microbatches, an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Adapter, Metric, Plan, Step
from dream._errors import ConfigurationError, Unsupported
from dream._mesh import Mesh
from dream._topology import Cluster, Topology
from dream.adapters.keras.forward import check_loss, check_metric, score
from dream.adapters.keras.optimizer import check_scaled
from dream.adapters.tensorflow import evaluation, starting
from dream.adapters.tensorflow.dealing import Dealt
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.adapters.tensorflow.parallel.split import knobs as options
from dream.adapters.tensorflow.parallel.split import room as rooms
from dream.adapters.tensorflow.parallel.split.block import Block
from dream.adapters.tensorflow.parallel.split.choice import Choice
from dream.adapters.tensorflow.parallel.split.keras_fit import Fitting
from dream.adapters.tensorflow.parallel.split.parted_step import Stepping
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Loop, Members
from dream.data.partition import split


@final
class PartedAdapter(Adapter):
    """Layers on devices of this process, or on ranks."""

    def __init__(self, plan: Plan, ways: Callable[[Mapping[str, object], Mesh], Choice]) -> None:
        self._plan = plan
        knobs = options.of(plan)
        self._room = rooms.room(plan)
        self._way = ways(plan.options, self._room.axes)
        self._known: WeakKeyDictionary[Any, Stepping] = WeakKeyDictionary()
        alone = Communicator(Loop(), TensorFlowTensors(), Members.all_of(Cluster()))
        runner, topology = self._room.runner(self._stepping, knobs), self.topology
        self._engine = ProcessEngine(alone, plan)
        self._engine.knobs = knobs
        self._fitting = Fitting(runner, ProcessEngine(alone, plan), topology)
        self._block = Block(self._fitting, topology.rank, knobs.precision)

    @property
    def topology(self) -> Topology:
        return self._room.topology

    @property
    def communicator(self) -> Communicator:
        return self._room.communicator

    def enter(self) -> None:
        self._block.enter()

    def exit(self) -> None:
        self._block.exit()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, keras.Model):
            self._fitting.take(item)
            if item.built:
                self._stepping(item)
            return item
        if isinstance(item, keras.optimizers.Optimizer):
            return self._fitting.optimizer(item)
        return self._room.deal(item)

    def _stepping(self, model: Any) -> Stepping:
        """A model's parts, made on first use."""
        if model not in self._known:
            parts = self._room.parts(model, self._way)
            knobs = self._engine.knobs
            given = self._plan.options.get("microbatches") is not None
            self._known[model] = Stepping(
                parts, self._way.microbatches, knobs, microbatches_given=given
            )
            parts.recompute(self._engine)
        return self._known[model]

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        check_loss(loss)
        check_scaled(self._engine.knobs.precision, optimizer)

        def judge(prediction: Any, rest: Any) -> Any:
            return tf.reduce_mean(score(loss, prediction, rest[-1]))

        fresh = True

        def call(*batch: Any) -> Any:
            nonlocal fresh
            batch = self._room.whole(batch)
            batch = tuple(tf.nest.map_structure(tf.convert_to_tensor, batch))
            if fresh:
                starting.build_model(model, batch)
                self._fitting.optimizer(optimizer)
                fresh = False
            stepping = self._stepping(model)
            inputs, _ = split(batch)
            x = inputs[0] if len(inputs) == 1 else list(inputs)
            value, _ = stepping.train(x, batch, judge, optimizer, weight)
            return value

        return call

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        for name, metric in metrics.items():
            check_metric(name, metric)
        predict = self._room.predictor(self._stepping(model).parts)
        pairs = tuple(metrics.items())

        def forward(*inputs: Any, training: bool = False) -> Any:
            del training
            return predict(inputs[0] if len(inputs) == 1 else list(inputs))

        total = np.zeros(len(metrics) + 1)
        sums = self._room.compiled(lambda *batch: evaluation.sums(forward, batch, pairs))
        for batch in data.global_batches() if isinstance(data, Dealt) else data:
            whole = tuple(tf.nest.map_structure(tf.convert_to_tensor, batch))
            total += np.asarray(sums(*whole))
        if not total[-1]:
            raise ConfigurationError("There is nothing to evaluate. Received: data with no sample.")
        return {name: float(value / total[-1]) for name, value in zip(metrics, total, strict=False)}

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            f"Under {self._plan.spec.name!r} dream takes the whole step. Received: weigh, for a "
            "loop of one's own. Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        return {v.path: np.asarray(v) for v in model.variables}
