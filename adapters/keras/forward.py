"""Calls of models, losses and metrics in a step by hand: Keras's own take the target first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from dream._errors import ConfigurationError, Unsupported

_MEANS = ("sum_over_batch_size", "mean", "none", None)


def forward(model: Any, inputs: tuple[Any, ...], *, training: bool) -> Any:
    """Return the model's output. A module that is not Keras's knows no `training`."""
    if isinstance(model, keras.Layer):
        return model(*inputs, training=training)
    return model(*inputs)


def score(function: Callable[..., Any], prediction: Any, target: Any) -> Any:
    """Return `function(prediction, target)`; what comes from Keras gets them in Keras's order."""
    if _is_keras(function):
        return function(target, prediction)
    return function(prediction, target)


def check_loss(loss: Any) -> None:
    """Refuse a loss that is a sum over a batch."""
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, keras.losses.Loss) and reduction not in _MEANS:
        raise Unsupported(
            "This loss is not a mean over samples, so ranks cannot share it. Received: "
            f"{type(loss).__name__}(reduction={reduction!r}). Use "
            "reduction='sum_over_batch_size', or weight= for what it should be the mean over."
        )


def check_metric(name: str, metric: Any) -> None:
    """Refuse a metric that is no function, but an object that keeps a state of its own."""
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


def unweighed(received: str) -> str:
    """Return the words of an error about gradients of a loop of the user's own."""
    return (
        "These gradients are one replica's own, and nothing says what they weigh. Received: "
        f"{received}, gradients that differ between replicas. Give every rank the same batch. "
        "Take the step by strategy.train_step(model, loss, optimizer), or use model.fit."
    )
