"""Metric states are sums over samples, so those of all parts add up to the global ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from dream._errors import Unsupported
from dream.adapters.keras import private


def states(model: Any) -> list[Any]:
    """The variables of all metrics of the model, each once."""
    found = {id(v): v for metric in model.metrics for v in metric.variables}
    return list(found.values())


def check_kinds(model: Any) -> None:
    """Refuse metrics that say themselves that their states do not add up."""
    for metric in _leaves([*private.given_metrics(model), *model.metrics]):
        for variable in metric.variables:
            if variable.aggregation != "sum":
                _refuse(metric, f"{variable.name} has aggregation={variable.aggregation!r}")


def check_starts(model: Any) -> None:
    """Refuse metrics, all made by now, that start elsewhere than at zero."""
    check_kinds(model)
    for metric in _leaves(model.metrics):
        metric.reset_state()
        for variable in metric.variables:
            value = keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(variable))
            if np.any(value != 0):
                _refuse(metric, f"{variable.name} starts at another value than 0")


def _leaves(metrics: list[Any]) -> list[Any]:
    """The metrics that a user would name: containers opened."""
    found: list[Any] = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        found.extend(_leaves(inner) if isinstance(inner, list) else [metric])
    return found


def _refuse(metric: Any, why: str) -> None:
    raise Unsupported(
        "This metric's state is not a sum over samples, so the replicas' do not add up. Received: "
        f"{type(metric).__name__} {metric.name!r}, in which {why}. Use a metric that sums, or "
        "compute it after predict."
    )
