"""What Keras's own metrics add up in one step, beside their variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import keras

from dream.adapters.keras.update import private

_ADDS = (keras.metrics.Mean.update_state, keras.metrics.Sum.update_state)
_UPDATES = (*_ADDS, keras.metrics.MeanMetricWrapper.update_state)
_OF_THE_STEP = ("train_step", "test_step", "compute_metrics", "get_metrics_result")


@final
class StepStates:
    """The states of metrics from zero on, in a step: as tensors, which is quicker in a graph than
    to set a variable to zero and to read what has been added to it."""

    def __init__(self, metrics: Iterable[Any]) -> None:
        self._metrics = {id(metric): metric for metric in metrics}
        self._states = {
            id(v): keras.ops.zeros(v.shape, v.dtype)
            for metric in self._metrics.values()
            for v in metric.variables
        }

    @classmethod
    def of(cls, model: Any) -> StepStates:
        """Return those of the metrics that nothing but Keras's own step updates and reads."""
        own = all(getattr(type(model), n) is getattr(keras.Model, n) for n in _OF_THE_STEP)
        return cls(
            metric
            for metric in private.metrics_of_step(model)
            if own and type(metric).update_state in _UPDATES
        )

    def __contains__(self, variable: Any) -> bool:
        return id(variable) in self._states

    def of_variable(self, variable: Any) -> Any:
        """Return what has been added up in the step."""
        return self._states.get(id(variable), variable.value)

    def add(self, metric: Any, update: Any, values: Any, weight: Any) -> None:
        """Update a metric. update: its class's, or the one that it is based on."""
        if id(metric) not in self._metrics:
            update(metric, values, sample_weight=weight)
            return
        with self._scope(metric) as scope:
            update(metric, values, sample_weight=weight)
        for v in metric.variables:
            self._states[id(v)] = scope.get_current_value(v)

    def result(self, metric: Any) -> Any:
        """Return the metric's result of what has been added up."""
        if id(metric) not in self._metrics:
            return type(metric).result(metric)
        with self._scope(metric):
            return type(metric).result(metric)

    def _scope(self, metric: Any) -> Any:
        return keras.StatelessScope([(v, self._states[id(v)]) for v in metric.variables])
