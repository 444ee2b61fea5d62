"""Before the first step taken by hand: variables are there, and rank 0's values in them."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dream._errors import ConfigurationError
from dream._layout import check_same
from dream.adapters.keras.consistency import unnumbered
from dream.adapters.keras.forward import forward
from dream.adapters.tensorflow import calling
from dream.collectives import Communicator
from dream.data.partition import split


def build(model: Any, optimizer: Any, batch: calling.Batch) -> None:
    """Make the variables that Keras would make during the first step. A batch dealt to replicas
    shows its first share."""
    build_model(model, batch)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)


def build_model(model: Any, batch: calling.Batch) -> None:
    """The same of the model alone."""
    inputs, _ = split(batch)
    if isinstance(model, keras.Layer) and not model.built:
        forward(model, tf.nest.map_structure(_first, inputs), training=False)
    if not model.trainable_variables:
        raise ConfigurationError(
            f"The model has nothing to train. Received: {type(model).__name__} with no trainable "
            "variable. Build it with layers, or set trainable=True on some."
        )


def agree(model: Any, optimizer: Any, communicator: Communicator) -> None:
    """Compare the ranks' variables, then take rank 0's values: weights, running statistics and
    the optimizer's state."""
    if communicator.world_size == 1:
        return
    variables = _variables(model, optimizer)
    check_same(communicator.all_gather_object([_layout(v) for v in variables]))
    numbers = [v for v in variables if tf.as_dtype(v.dtype) != tf.string]
    values = communicator.broadcast([tf.convert_to_tensor(v) for v in numbers])
    if communicator.rank != 0:
        for variable, value in zip(numbers, values, strict=True):
            variable.assign(value)


def _variables(model: Any, optimizer: Any) -> list[Any]:
    """Seeds are left out: ranks draw different masks on purpose."""
    own = model.weights if isinstance(model, keras.Layer) else model.variables
    return [*own, *optimizer.variables]


def _layout(variable: Any) -> tuple[str, tuple[int, ...], str]:
    name = unnumbered(variable.path) if isinstance(variable, keras.Variable) else variable.name
    return name, tuple(int(size) for size in variable.shape), tf.as_dtype(variable.dtype).name


def _first(x: Any) -> Any:
    return x.values[0] if isinstance(x, tf.distribute.DistributedValues) else x
