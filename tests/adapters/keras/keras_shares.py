"""Keras models whose replicas have shares of their own, and the same without dream."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
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
        return -(-SAMPLES // BATCH)

    def __getitem__(self, index: int) -> Any:
        return tuple(part[index * BATCH : (index + 1) * BATCH] for part in self._data)


def trained(shares: list[int], kinds: Sequence[str]) -> dict[str, Any]:
    """By kind of data: logs, figures of an evaluation and weights, of the plain script on rank 0
    alone; and what is said of shares that are to follow speeds."""
    first = os.environ["RANK"] == "0"
    plain = {kind: _trained(kind, None) for kind in kinds if first}
    ours = {kind: _trained(kind, shares) for kind in kinds}
    return {"plain": plain, "ours": ours, "refused": _refused()}


def _trained(kind: str, shares: list[int] | None) -> list[Any]:
    keras.utils.set_random_seed(5)
    x = np.random.randn(SAMPLES, 8).astype("float32")
    y = np.random.randint(0, 3, SAMPLES)
    with nullcontext() if shares is None else dream.strategy("mirrored", shares=shares):
        dense = keras.layers.Dense
        norm, dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)
        model = keras.Sequential([keras.Input((8,)), dense(16, "relu"), norm, dropout, dense(3)])
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


def _refused() -> str:
    try:
        with dream.strategy("mirrored", shares="auto"):
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
    except dream.DreamError as error:
        return str(error)
    return ""
