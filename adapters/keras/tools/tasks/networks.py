"""The embedded tasks' networks as a Keras user writes them, and their weights by task's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from dream.tools.compare.tasks import Weights, text
from dream.tools.compare.tasks.task import MOMENTUM, Task

_KINDS = {"gamma": "scale", "embeddings": "table", "beta": "bias"}
"""Keras's name of a weight -> the task's, where they differ."""


class Places(keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Adds a learned vector to every place."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


class Attention(keras.layers.Layer):  # type: ignore[misc]
    """Scaled dot products of several heads; every place sees those before it."""

    def call(self, query: Any, key: Any, value: Any) -> Any:
        size = keras.ops.shape(query)
        heads = [
            keras.ops.reshape(x, (size[0], size[1], text.HEADS, text.WIDTH // text.HEADS))
            for x in (query, key, value)
        ]
        seen = keras.ops.dot_product_attention(*heads, is_causal=True)
        return keras.ops.reshape(seen, (size[0], size[1], text.WIDTH))


def build(task: Task, weights: Weights) -> Any:
    """The task's network with its first weights."""
    network = keras.Model(*_NETWORKS[task.name]())
    for (layer, name), variable in _named(network).items():
        variable.assign(weights[f"{layer}.{name}"])
    return network


def optimizer_of(task: Task) -> Any:
    return keras.optimizers.SGD(task.learning_rate, momentum=MOMENTUM)


def loss_of(task: Task) -> Any:
    if task.loss == "squares":
        return keras.losses.MeanSquaredError()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def explained(squared_error: float, y: Any) -> float:
    """The share of the variance that is explained."""
    return 1.0 - squared_error / float(np.var(y, dtype=np.float64))


def parameters(network: Any) -> Weights:
    return {
        f"{layer}.{name}": np.asarray(keras.ops.convert_to_numpy(variable)).copy()
        for (layer, name), variable in _named(network).items()
    }


def _named(network: Any) -> dict[tuple[str, str], Any]:
    return {
        (layer.name, _KINDS.get(variable.name, variable.name)): variable
        for layer in network.layers
        for variable in layer.trainable_variables
    }


def _mlp(inputs: int, hidden: int, outputs: int) -> tuple[Any, Any]:
    x = start = keras.Input((inputs,))
    x = keras.layers.Dense(hidden, activation="relu", name="hidden")(x)
    return start, keras.layers.Dense(outputs, name="output")(x)


def _cnn() -> tuple[Any, Any]:
    x = start = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(16, 3, activation="relu", name="first")(x)
    x = keras.layers.Conv2D(32, 3, activation="relu", name="second")(x)
    x = keras.layers.Flatten()(x)
    return start, keras.layers.Dense(10, name="output")(x)


def _transformer() -> tuple[Any, Any]:
    x = start = keras.Input((text.LENGTH,), dtype="int32")
    x = keras.layers.Embedding(len(text.LETTERS), text.WIDTH, name="letters")(x)
    x = Places(name="places")(x)
    y = _normal("before_attention")(x)
    parts = [keras.layers.Dense(text.WIDTH, name=name)(y) for name in ("query", "key", "value")]
    x = x + keras.layers.Dense(text.WIDTH, name="mixed")(Attention()(*parts))
    y = keras.layers.Dense(text.INNER, activation="gelu", name="inner")(_normal("before_inner")(x))
    x = x + keras.layers.Dense(text.WIDTH, name="outer")(y)
    x = _normal("before_output")(x)
    return start, keras.layers.Dense(len(text.LETTERS), name="output")(x)


def _normal(name: str) -> Any:
    return keras.layers.LayerNormalization(epsilon=1e-5, name=name)


_NETWORKS: Mapping[str, Callable[[], tuple[Any, Any]]] = {
    "digits-mlp": lambda: _mlp(64, 32, 10),
    "digits-cnn": _cnn,
    "transformer": _transformer,
    "regression": lambda: _mlp(10, 32, 1),
}
