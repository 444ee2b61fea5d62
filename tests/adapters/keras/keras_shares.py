"""Keras models whose replicas have shares of their own, and the same without dream."""

from __future__ import annotations

import logging
import logging.handlers
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import keras
import numpy as np

import dream

SAMPLES, BATCH = 61, 16


class Batches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
    """Batches that are made one by one."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self._data = x, y

    def __len__(self) -> int:
        return -(-len(self._data[0]) // BATCH)

    def __getitem__(self, index: int) -> Any:
        return tuple(part[index * BATCH : (index + 1) * BATCH] for part in self._data)


@keras.saving.register_keras_serializable()
class Slow(keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Takes so many seconds a sample."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def call(self, x: Any) -> Any:
        if keras.backend.backend() == "torch":
            self._wait(len(x))
            return x
        import tensorflow as tf

        with tf.control_dependencies([tf.numpy_function(self._wait, [tf.shape(x)[0]], tf.int64)]):
            return tf.identity(x)

    def _wait(self, rows: int) -> Any:
        time.sleep(self.seconds * int(rows))
        return np.int64(0)


def trained(kinds: Sequence[str]) -> dict[str, Any]:
    """By shares and kind of data: logs, figures of an evaluation and weights, of the plain script
    on rank 0 alone; and what was said. Where shares follow speeds, the second rank is slower."""
    first = os.environ["RANK"] == "0"
    found: dict[str, Any] = {"plain": {}, "said": {}}
    for name, shares in (("by hand", [3, 1]), ("auto", "auto")):
        said = found[name] = {}
        many = SAMPLES if name == "by hand" else 4 * SAMPLES
        found["plain"][name] = {k: _trained(k, None, many) for k in kinds if first}
        heard = logging.handlers.BufferingHandler(10**6)
        logging.getLogger("dream").addHandler(heard)
        for kind in kinds:
            said[kind] = _trained(kind, shares, many)
            found["said"][name, kind] = [line.getMessage() for line in heard.buffer]
            heard.flush()
        logging.getLogger("dream").removeHandler(heard)
    found["goes on"] = goes_on()
    return found


def goes_on() -> float:
    """Evaluate after a step that failed while it was traced, its time half taken: the loss."""
    calls: list[int] = []

    def loss(target: Any, prediction: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:  # the first is a trial
            raise ZeroDivisionError
        return keras.ops.mean((target - prediction) ** 2, axis=-1)

    with dream.strategy("mirrored", shares="auto"):
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile("sgd", loss)
        with suppress(ZeroDivisionError):
            model.fit(np.ones((8, 1)), np.zeros((8, 1)), verbose=0)
        return float(model.evaluate(np.ones((8, 1)), np.zeros((8, 1)), verbose=0))


def _trained(kind: str, shares: list[int] | str | None, samples: int) -> list[Any]:
    keras.utils.set_random_seed(5)
    x = np.random.randn(samples, 8).astype("float32")
    y = np.random.randint(0, 3, samples)
    slow = 0.01 if shares == "auto" and os.environ["RANK"] == "1" else 0.001
    with nullcontext() if shares is None else dream.strategy("mirrored", shares=shares):
        dense = keras.layers.Dense
        norm: list[Any] = [keras.layers.BatchNormalization()] if samples == SAMPLES else []
        layers = [dense(16, "relu"), *norm, Slow(slow), keras.layers.Dropout(0.3), dense(3)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        if kind == "on batch":
            batches = Batches(x, y)
            logs = [model.train_on_batch(*batches[i])[0] for i in range(len(batches))]
        elif kind == "batches":
            logs = model.fit(Batches(x, y), epochs=2, shuffle=False, verbose=0).history["loss"]
        else:
            logs = model.fit(x, y, BATCH, 2, verbose=0).history["loss"]
        figures = model.evaluate(x, y, BATCH, verbose=0)
    return [np.array(logs, "float64"), np.array(figures, "float64"), *model.get_weights()]
