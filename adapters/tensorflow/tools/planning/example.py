"""Take what the user's function gives: a Keras model, perhaps a loss and an example batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from dream._errors import ConfigurationError, Unsupported
from dream.tools.plan.asked import TrainingSpec

HOW = (
    "Return a Keras model that knows its inputs, (model, batch) or (model, loss, batch): batch is "
    "(input, target) as arrays; loss takes (prediction, target), or is one of Keras's"
)


@final
@dataclass(frozen=True, slots=True)
class KerasExample:
    """A Keras model with the shapes of its batch.

    inputs, target: their shapes without the samples' dim, and dtypes. samples: of the batch.
    """

    model: Any
    loss: Callable[[Any, Any], Any]
    named: str
    inputs: list[tf.TensorSpec]
    target: tf.TensorSpec | None
    samples: int | None

    def specs(self, samples: int) -> tuple[list[tf.TensorSpec], tf.TensorSpec | None]:
        """With their samples."""
        inputs = [tf.TensorSpec((samples, *x.shape), x.dtype) for x in self.inputs]
        y = self.target
        return inputs, None if y is None else tf.TensorSpec((samples, *y.shape), y.dtype)


def example(build: Callable[[], Any], training: TrainingSpec) -> KerasExample:
    """Build the model, its variables without values where that can be."""
    if keras.backend.backend() != "tensorflow":
        raise Unsupported(
            f"Keras models are planned on TensorFlow. Received: Keras on {keras.backend.backend()}."
            " Set KERAS_BACKEND=tensorflow."
        )
    keras.config.set_dtype_policy(training.precision)
    scope = keras.StatelessScope()
    scope.__enter__()  # for good: whoever leaves it gives the variables their values
    try:
        return _example(build())
    except ValueError as error:
        scope.__exit__(None, None, None)
        if "stateless scope" not in str(error):
            raise
    return _example(build())  # it makes an optimizer or a metric, which need their values


def real(build: Callable[[], Any], training: TrainingSpec) -> KerasExample:
    """With values, in a rank."""
    keras.config.set_dtype_policy(training.precision)
    return _example(build())


def _example(given: Any) -> KerasExample:
    parts = given if isinstance(given, tuple) else (given,)
    model = parts[0]
    if not isinstance(model, keras.Model) or len(parts) > 3:
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise ConfigurationError(
            f"The function did not return a Keras model. Received: {kinds}. {HOW}."
        )
    if len(parts) == 1:
        return KerasExample(model, _mean, "mean of the output", _known(model), None, None)
    *rest, batch = parts[1:]
    x, y = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else (batch, None)
    inputs = [np.asarray(each) for each in (x if isinstance(x, (tuple, list)) else [x])]
    specs = [_spec(each) for each in inputs]
    if not model.built:
        model(keras.Input(specs[0].shape, dtype=specs[0].dtype.name))
    target = None if y is None else _spec(np.asarray(y))
    loss, named = (_loss(rest[0]), "the given one") if rest else _guessed(target)
    return KerasExample(model, loss, named, specs, target, len(inputs[0]))


def _known(model: Any) -> list[tf.TensorSpec]:
    inputs = getattr(model, "inputs", None) or []
    if not inputs or any(None in x.shape[1:] for x in inputs):
        raise ConfigurationError(
            "The shape of the model's input is not known. Received: "
            f"{[x.shape for x in inputs] or 'a model without inputs'}. {HOW}."
        )
    return [tf.TensorSpec(x.shape[1:], x.dtype) for x in inputs]


def _spec(x: Any) -> tf.TensorSpec:
    dtype = "float32" if x.dtype == np.float64 else x.dtype.name
    return tf.TensorSpec(x.shape[1:], dtype)


def _loss(given: Any) -> Callable[[Any, Any], Any]:
    if isinstance(given, str):
        given = keras.losses.get(given)
        return lambda prediction, target: tf.reduce_mean(given(target, prediction))
    if isinstance(given, keras.losses.Loss):
        return lambda prediction, target: given(target, prediction)
    loss: Callable[[Any, Any], Any] = given
    return loss


def _guessed(target: tf.TensorSpec | None) -> tuple[Callable[[Any, Any], Any], str]:
    """Cross-entropy of logits for class numbers, mean squared error for other targets."""
    if target is None:
        return _mean, "mean of the output"
    return (
        (_class, "cross-entropy") if target.dtype.is_integer else (_squared, "mean squared error")
    )


def _mean(prediction: Any, _: Any = None) -> Any:
    first = tf.nest.flatten(prediction)[0]
    return tf.reduce_mean(tf.cast(first, tf.float32))


def _class(prediction: Any, target: Any) -> Any:
    logits = tf.cast(prediction, tf.float32)
    found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=logits)
    return tf.reduce_mean(found)


def _squared(prediction: Any, target: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.cast(prediction, tf.float32) - tf.cast(target, tf.float32)))
