"""TensorFlow: one adapter over whatever `Parallelism` a strategy is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import keras
import numpy as np
from numpy.typing import NDArray

from dream import stall
from dream._adapter import Adapter, Metric, Plan, Step
from dream._topology import Topology
from dream.adapters.keras.checkpoint.checkpointer import KerasCheckpointer
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.parallel.base import Parallelism
from dream.checkpoint.checkpointer import Checkpointer
from dream.collectives import Communicator


@final
class TensorFlowAdapter(Adapter):
    """Keras models on TensorFlow."""

    def __init__(self, parallelism: Callable[[Plan], Parallelism], plan: Plan) -> None:
        stall.phases_inside(private.phases())
        self.parallelism = parallelism(plan)

    @property
    def topology(self) -> Topology:
        return self.parallelism.topology

    @property
    def communicator(self) -> Communicator:
        return self.parallelism.communicator

    def enter(self) -> None:
        self.parallelism.enter()

    def exit(self) -> None:
        self.parallelism.exit()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, keras.Model):
            return self.parallelism.prepare_model(item)
        if isinstance(item, keras.optimizers.Optimizer):
            return self.parallelism.prepare_optimizer(item)
        return self.parallelism.prepare_data(item)

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        return self.parallelism.train_step(model, loss, optimizer, weight)

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return self.parallelism.evaluate(model, data, metrics)

    def weigh(self, loss: Any, count: Any) -> Any:
        return self.parallelism.weigh(loss, count)

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        return {v.path: np.asarray(v) for v in model.variables}

    def checkpointer(self, model: Any) -> Checkpointer:
        del model
        return KerasCheckpointer(self.parallelism.keras_engine)
