"""How models, losses and metrics are called: Keras's own take the target first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from dream._errors import ConfigurationError, Unsupported

_MEANS = ("sum_over_batch_size", "mean", "none", None)


def predict(model: Any, inputs: tuple[Any, ...], *, training: bool) -> Any:
    """The model's output. A module that is not Keras's knows no `training`."""
    if isinstance(model, keras.Layer):
        return model(*inputs, training=training)
    return model(*inputs)


def judge(function: Callable[..., Any], prediction: Any, target: Any) -> Any:
    """`function(prediction, target)`; what comes from Keras gets them in Keras's order."""
    if _is_keras(function):
        return function(target, prediction)
    return function(prediction, target)


def check_loss(loss: Any) -> None:
    """A loss must be a function of one batch, and no sum over it."""
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, keras.losses.Loss) and reduction not in _MEANS:
        raise Unsupported(
            "This loss is not a mean over samples, so ranks cannot share it. Received: "
            f"{type(loss).__name__}(reduction={reduction!r}). Use "
            "reduction='sum_over_batch_size', or weight= for what it should be the mean over."
        )


def check_metric(name: str, metric: Any) -> None:
    """A metric must be a function; an object that keeps a state of its own is no such thing."""
    if isinstance(metric, keras.metrics.Metric) or not callable(metric):
        raise ConfigurationError(
            "A metric is a function of (prediction, target) with one value per sample. Received: "
            f"{name}={type(metric).__name__}. Give a function, or keras.metrics' functions such as "
            "sparse_categorical_accuracy."
        )


def _is_keras(function: Any) -> bool:
    return isinstance(function, keras.losses.Loss) or str(
        getattr(function, "__module__", "")
    ).startswith("keras.")
