"""What every strategy that puts whole layers on devices is: parts, microbatches, an update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Adapter, Metric, Plan, Step
from dream._batch import split
from dream._errors import ConfigurationError, Unsupported
from dream._mesh import Mesh
from dream._topology import Topology
from dream.adapters.keras import calling
from dream.adapters.tensorflow import evaluation, runtime, starting
from dream.adapters.tensorflow.dealing import Dealt, share_cut
from dream.adapters.tensorflow.keras_engine import ProcessEngine
from dream.adapters.tensorflow.split.block import Block
from dream.adapters.tensorflow.split.cutting import Cut
from dream.adapters.tensorflow.split.keras_fit import Fitting
from dream.adapters.tensorflow.split.parted import Parted
from dream.adapters.tensorflow.split.parted_fit import PartedRunner
from dream.adapters.tensorflow.split.parted_step import Stepping
from dream.adapters.tensorflow.split.schedule import Kind
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.communication import Communicator, Loop, Members


class PartedAdapter(Adapter):
    """Layers on the devices of one process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        if not plan.cluster.alone:
            raise Unsupported(
                f"split={plan.options['split']!r} in TensorFlow runs over the devices of one "
                f"process. Received: world size {plan.cluster.world_size}. Use devices=N in one "
                "process, or split='tensor' or 'sharded', which run over several."
            )
        devices = runtime.replicas(plan.devices)
        data, model = plan.options["data"], plan.options["model"]
        assert data is None or isinstance(data, int)
        assert model is None or isinstance(model, int)
        if plan.spec.name == "model_parallel" and data is None and model is None:
            data = 1
        self._axes = Mesh.fit(len(devices), data=data, model=model, spare="model")
        size = self._axes.model
        self._rows = [devices[row * size : (row + 1) * size] for row in range(self._axes.data)]
        self._topology = Topology.of(plan.cluster, num_replicas=len(devices), device=devices[0])
        self._talk = Communicator(Loop(), TensorFlowTensors(), Members.all_of(plan.cluster))
        self._known: WeakKeyDictionary[Any, Stepping] = WeakKeyDictionary()
        runner = PartedRunner(self._stepping)
        self._fitting = Fitting(runner, ProcessEngine(self._talk, plan), self._topology)
        self._block = Block(self._fitting, 0)

    @abstractmethod
    def _cut(self, model: Any) -> Cut:
        """The model in parts; which device of a row each is on."""

    @property
    @abstractmethod
    def _kind(self) -> Kind: ...

    @property
    @abstractmethod
    def _microbatches(self) -> int:
        """How many there are at most."""

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._talk

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
        return Dealt(item, share_cut(0, 1), self._talk)

    def _stepping(self, model: Any) -> Stepping:
        """A model's parts, made on first use."""
        if model not in self._known:
            parted = Parted(model, self._cut(model), self._rows, self._kind)
            clip_norm = self._plan.options["clip_norm"]
            assert clip_norm is None or isinstance(clip_norm, float)
            given = self._plan.options.get("microbatches") is not None
            self._known[model] = Stepping(
                parted, self._microbatches, clip_norm, microbatches_given=given
            )
        return self._known[model]

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        calling.check_loss(loss)

        def judge(prediction: Any, rest: Any) -> Any:
            return tf.reduce_mean(calling.judge(loss, prediction, rest[-1]))

        fresh = True

        def call(*batch: Any) -> Any:
            nonlocal fresh
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
            calling.check_metric(name, metric)
        parted = self._stepping(model).parted
        pairs = tuple(metrics.items())

        def forward(*inputs: Any, training: bool = False) -> Any:
            del training
            return parted.predict(inputs[0] if len(inputs) == 1 else list(inputs))

        total = np.zeros(len(metrics) + 1)
        sums = tf.function(lambda *batch: evaluation.sums(forward, batch, pairs))
        for batch in data:
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
