"""Refusals, before it trains, of what in a Keras model cannot be exact over several parts."""

from __future__ import annotations

from types import MethodType
from typing import Any

import keras
import numpy as np

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.keras import private
from dream.adapters.keras.engine import Engine


def check_compiled(model: Any) -> None:
    if not model.compiled:
        raise ConfigurationError(
            "The model has no optimizer and loss yet. Received: compiled=False. Call "
            "model.compile first."
        )


def check_compilation(model: Any, engine: Engine, asked: Any) -> None:
    """XLA cannot compile collectives: it is off, and where it was `asked` for, that is said: the
    numbers are the same, but XLA draws others. TensorFlow cannot put the steps of several devices
    into one loop."""
    if asked is True:
        logger.info(
            "a compiled step cannot hold the sum over the replicas, so the step of %s is not "
            "compiled. Received: jit_compile=True. The numbers are the same, save what is drawn "
            "(dropout, noise): XLA draws other numbers",
            model.name,
        )
    if model.jit_compile:
        model.jit_compile = False
    if engine.mixed and model.steps_per_execution > 1:
        raise Unsupported(
            "Ranks of two frameworks run one step per call. Received: "
            f"steps_per_execution={model.steps_per_execution}. Leave it at 1."
        )
    if engine.pooled and model.steps_per_execution > 1:
        raise Unsupported(
            "Several devices in one process run one step per call. Received: "
            f"steps_per_execution={model.steps_per_execution}. Leave it at 1, or start several "
            "processes with `dream run`."
        )


def check_own_loop(model: Any, name: str, engine: Engine) -> None:
    if engine.parts > 1 and getattr(type(model), name) is not getattr(keras.Model, name):
        raise Unsupported(
            f"A model with its own {name} cannot be distributed. Received: "
            f"{type(model).__name__}.{name}. Override train_step or test_step in its place."
        )


def report_generators(x: Any, validation: Any, engine: Engine) -> None:
    """Say that it is a race which of two generators draws first, where TensorFlow reads them."""
    if engine.framework == "tensorflow" and hasattr(x, "__next__") and _yields(validation):
        logger.info(
            "fit's two generators are read ahead in threads of TensorFlow's: which of them draws "
            "first from random numbers that they share is a matter of time, on one device too. "
            "Give each a numpy.random.default_rng(seed) of its own"
        )


def _yields(validation: Any) -> bool:
    first = validation[0] if isinstance(validation, tuple) else validation
    return hasattr(first, "__next__")


def check_micro_batches(model: Any) -> None:
    """Only what Keras's own step does can be done in parts."""
    for name in ("train_step", "compute_metrics"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise Unsupported(
                "A custom train_step cannot be split into micro-batches. Received: "
                f"{type(model).__name__}.{name} with accumulate=. Remove accumulate, or use "
                "gradient_accumulation_steps of the optimizer."
            )


def check_stateless(model: Any) -> None:
    """Refuse layers whose state has a row for each sample of a fixed batch."""
    kept = [layer.name for layer in private.layers_of(model) if getattr(layer, "stateful", False)]
    if kept:
        raise Unsupported(
            "A stateful layer keeps a row of its state for each sample of a batch of one size, and "
            f"parts of a batch have fewer. Received: stateful=True for {', '.join(kept)}. Use "
            "'single', or remove stateful."
        )


_SIZED = {
    keras.layers.TimeDistributed: (
        1, False, "goes over as many steps as the batch has rows where their number is not known "
        "as a step is traced, so a replica's share would have fewer", "Give the number of steps: "
        "dataset.map(lambda x, y: (tf.ensure_shape(x, (None, steps, features)), y))",
    ),
    getattr(keras.layers, "RandomElasticTransform", None): (
        0, True, "puts the first image of a batch in the place of others where their number is not "
        "known as a step is traced", "Give batches of one known size (drop_remainder=True), or "
        "augment in dataset.map before batching",
    ),
}  # fmt: skip
"""Layers that Keras gets wrong in graphs: of which dim the size is to be known, whether in training
alone, what it does, and what to do."""


def refuse_unknown_sizes(model: Any) -> None:
    """Have layers refuse inputs of which a graph does not know a size that they go by."""
    for layer in private.layers_of(model):
        if type(layer) in _SIZED and "call" not in vars(layer):
            layer.call = MethodType(_call_of_known_size, layer)


def _call_of_known_size(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    dim, in_training, does, instead = _SIZED[type(self)]
    shape = tuple(getattr(inputs, "shape", ()))
    does_it = not in_training or kwargs.get("training", True)
    if does_it and len(shape) > dim and shape[dim] is None:
        raise Unsupported(
            f"Keras's {type(self).__name__} {does}. Received: inputs of {self.name!r} of shape "
            f"{shape}. {instead}."
        )
    return type(self).call(self, inputs, *args, **kwargs)


def check_reduced(model: Any) -> None:
    """Refuse losses that are left unreduced."""
    for loss in private.compiled_losses(model):
        if loss.reduction in (None, "none"):
            raise Unsupported(
                "This loss is not one number, so replicas cannot share it. Received: "
                f"{type(loss).__name__}(reduction={loss.reduction!r}). Use "
                "reduction='sum_over_batch_size' or 'sum'."
            )


def check_means(model: Any) -> None:
    """Where a replica's loss is taken as it is, only one that is a mean over samples is the mean of
    the replicas' means."""
    for loss in private.compiled_losses(model):
        if loss.reduction not in ("sum_over_batch_size", "mean"):
            raise Unsupported(
                "This loss is not a mean over samples, so replicas cannot share it. Received: "
                f"{type(loss).__name__}(reduction={loss.reduction!r}). Use "
                "reduction='sum_over_batch_size'."
            )


def check_metrics(model: Any) -> None:
    """Refuse metrics that say themselves that their states do not add up."""
    for metric in private.leaf_metrics([*private.given_metrics(model), *model.metrics]):
        for variable in metric.variables:
            if variable.aggregation != "sum":
                raise _no_sum(metric, f"{variable.name} has aggregation={variable.aggregation!r}")


def check_metrics_start(model: Any) -> None:
    """Refuse metrics, all made by now, that start elsewhere than at zero."""
    check_metrics(model)
    for metric in private.leaf_metrics(model.metrics):
        metric.reset_state()
        for variable in metric.variables:
            value = keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(variable))
            if np.any(value != 0):
                raise _no_sum(metric, f"{variable.name} starts at another value than 0")


def _no_sum(metric: Any, why: str) -> Unsupported:
    return Unsupported(
        "This metric's state is not a sum over samples, so the replicas' do not add up. Received: "
        f"{type(metric).__name__} {metric.name!r}, in which {why}. Use a metric that sums, or "
        "compute it after predict."
    )
