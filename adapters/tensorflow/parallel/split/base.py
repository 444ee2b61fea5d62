"""What every strategy on a DTensor mesh is: a place, layouts, steps on global batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Adapter, Metric, Plan, Step
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Cluster, Topology
from dream.adapters.keras import recompute
from dream.adapters.keras.forward import check_metric
from dream.adapters.keras.optimizer import check_scaled
from dream.adapters.tensorflow import evaluation, starting, training
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.adapters.tensorflow.parallel.split import knobs as options
from dream.adapters.tensorflow.parallel.split import updating
from dream.adapters.tensorflow.parallel.split.block import Block
from dream.adapters.tensorflow.parallel.split.compiled import compiled
from dream.adapters.tensorflow.parallel.split.in_micros import in_micros
from dream.adapters.tensorflow.parallel.split.keras_fit import Fitting
from dream.adapters.tensorflow.parallel.split.layouts import Layouts
from dream.adapters.tensorflow.parallel.split.mesh_runner import MeshRunner
from dream.adapters.tensorflow.parallel.split.onto import Onto
from dream.adapters.tensorflow.parallel.split.place import Place
from dream.adapters.tensorflow.parallel.split.shares import Shares
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Loop, Members


class MeshAdapter(Adapter):
    """Keras models on a mesh of devices. Every process runs the same program on the same batches;
    DTensor shares out the work."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        knobs = options.of(plan)
        self._place = self._connect(plan)
        self._onto = Onto(self._place.mesh, self._layouts(plan), self.communicator)
        alone = Communicator(Loop(), TensorFlowTensors(), Members.all_of(Cluster()))
        self._engine = ProcessEngine(alone, plan)
        self._engine.knobs = knobs
        runner = MeshRunner(self._onto, self._engine)
        self._fitting = Fitting(runner, ProcessEngine(alone, plan), self.topology)
        self._shares = Shares(self.communicator)
        self._block = Block(self._fitting, self.topology.rank, knobs.precision)
        self._making = ExitStack()

    @abstractmethod
    def _connect(self, plan: Plan) -> Place: ...

    @abstractmethod
    def _layouts(self, plan: Plan) -> Layouts: ...

    @property
    def topology(self) -> Topology:
        return self._place.topology

    @property
    def communicator(self) -> Communicator:
        return self._place.communicator

    def enter(self) -> None:
        self._block.enter()
        self._making.enter_context(self._onto.making())

    def exit(self) -> None:
        self._making.close()
        self._block.exit()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, keras.Model):
            self._fitting.take(item)
            if item.built:
                self._onto.model(item)
            return item
        if isinstance(item, keras.optimizers.Optimizer):
            return self._fitting.optimizer(item)
        return self._shares.deal(item)

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        """weight: of micro-batches; else the loss sees the global batch as on one device."""
        knobs = self._engine.knobs
        check_scaled(knobs.precision, optimizer)
        step = training.LocalStep(model, loss, optimizer, weight, None, ranks=True)

        def micro(*given: Any) -> list[Any]:
            *part, _share, _rows = given
            return [updating.laid(x, self._onto) for x in step.micro(*part)]

        if knobs.accumulates:
            on_mesh = in_micros(micro, step.finish, self._onto, knobs.accumulate)
        else:
            on_mesh = compiled(step, self._onto, "train")
        fresh = True

        def call(*batch: Any) -> Any:
            nonlocal fresh
            whole = self._shares.whole(batch)
            if fresh:
                self._start(model, optimizer, whole)
                fresh = False
            return on_mesh(*whole)

        return call

    def _start(self, model: Any, optimizer: Any, batch: tuple[Any, ...]) -> None:
        with self._onto.making():
            starting.build_model(model, tf.nest.map_structure(tf.convert_to_tensor, batch))
        self._fitting.take(model)
        self._fitting.optimizer(optimizer)
        self._onto.model(model)
        recompute.adopt(model, self._engine)
        self._onto.metrics(model)
        self._onto.optimizer(optimizer, model.trainable_variables)

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        for name, metric in metrics.items():
            check_metric(name, metric)
        pairs = tuple(metrics.items())
        sums = compiled(lambda *batch: evaluation.sums(model, batch, pairs), self._onto, "evaluate")
        total = np.zeros(len(metrics) + 1)
        for batch in self._shares.batches(data):
            if not model.built:
                with self._onto.making():
                    model(*batch[:-1])
            self._onto.model(model)
            total += np.asarray(sums(*batch))
        if not total[-1]:
            raise ConfigurationError("There is nothing to evaluate. Received: data with no sample.")
        return {name: float(value / total[-1]) for name, value in zip(metrics, total, strict=False)}

    def weigh(self, loss: Any, count: Any) -> Any:
        raise Unsupported(
            f"Under {self._plan.spec.name!r} dream takes the whole step. Received: weigh, for a "
            "loop of one's own. Use strategy.train_step(model, loss, optimizer)."
        )

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        return {v.path: np.asarray(v) for v in model.variables}
