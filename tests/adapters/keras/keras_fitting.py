"""Keras models on torch on ranks whose memory runs out, and what they end at."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import torch
from little_memory import LEFT, ROW, Asks, little_memory

import dream

SAMPLES, BATCH = 45, 16


class Hungry(keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Takes memory for each row, from a call on."""

    def __init__(self, each: int, where: str, first: int) -> None:
        super().__init__()
        self.each, self.where, self.first, self.called = each, where, first, 0

    def call(self, x: Any, training: bool = False) -> Any:
        if x.device.type == "meta" or not training:
            return x
        self.called += 1
        return Asks.apply(x, self.each if self.called > self.first else 0, self.where)


def built(each: int, where: str = "forward", first: int = 0) -> tuple[Any, Hungry]:
    keras.utils.set_random_seed(5)
    hungry, dense = Hungry(each, where, first), keras.layers.Dense
    return keras.Sequential([keras.Input((8,)), dense(16, "relu"), hungry, dense(3)]), hungry


def data() -> tuple[Any, Any]:
    drawn = np.random.default_rng(1)
    x = drawn.normal(size=(SAMPLES, 8)).astype("float32")
    return x, drawn.integers(0, 3, SAMPLES)


def fitted(limited: list[int] | None, where: str = "forward", first: int = 0) -> dict[str, Any]:
    """limited: ranks that have little memory; None for a training without."""
    options: dict[str, Any] = {} if limited is None else {"accumulate": "auto"}
    with dream.strategy("mirrored", **options) as strategy:
        model, hungry = built(0 if limited is None else ROW, where, first)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        few = limited is not None and strategy.topology.rank in limited
        with little_memory() if few else nullcontext():
            logs = model.fit(*data(), BATCH, 3, verbose=0).history
    return figures(model, hungry, [logs["loss"], logs["accuracy"]])


def stepped(limited: list[int] | None, where: str = "forward", first: int = 0) -> dict[str, Any]:
    """By the explicit step."""
    options: dict[str, Any] = {} if limited is None else {"accumulate": "auto"}
    with dream.strategy("mirrored", **options) as strategy:
        model, hungry = built(0 if limited is None else ROW, where, first)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = strategy.train_step(model, loss, keras.optimizers.SGD(0.1, momentum=0.9))
        few = limited is not None and strategy.topology.rank in limited
        batches = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*map(torch.from_numpy, data())), batch_size=BATCH
        )
        with little_memory() if few else nullcontext():
            losses = [float(step(x, y)) for _ in range(3) for x, y in batches]
    return figures(model, hungry, losses)


def figures(model: Any, hungry: Hungry, logs: Any) -> dict[str, Any]:
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "logs": logs,
        "drawn": torch.rand(()).item(),
        "called": hungry.called,
    }


def everything() -> dict[str, Any]:
    last = int(os.environ.get("WORLD_SIZE", "1")) - 1
    found: dict[str, Any] = {}
    for name, train in (("fit", fitted), ("train_step", stepped)):
        found[name] = {
            "plain": train(None),
            "with room": train([]),
            "in forward": train([*range(last + 1)]),
            "in backward on the last rank": train([last], "backward"),
            "in forward on the last rank, later": train([last], "forward", 7),
        }
    found |= {"one row": one_row(), "norm": refused(norm=True), "dropout": refused(norm=False)}
    return found


def one_row() -> list[str]:
    with dream.strategy("mirrored", accumulate="auto") as strategy:
        model, _ = built(LEFT + ROW, "backward")
        model.compile("sgd", "mse")
        few = strategy.topology.rank + 1 == strategy.topology.world_size
        try:
            with little_memory() if few else nullcontext():
                model.fit(np.ones((4, 8)), np.ones((4, 3)), 4, verbose=0)
        except Exception as error:
            return [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
    return []


def refused(*, norm: bool) -> str:
    with dream.strategy("mirrored", accumulate="auto"):
        layer = keras.layers.BatchNormalization if norm else lambda: keras.layers.Dropout(0.1)
        model = keras.Sequential([keras.Input((8,)), layer(), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
        try:
            model.fit(np.ones((4, 8)), np.ones((4, 3)), 4, verbose=0)
        except dream.Unsupported as error:
            return str(error)
    return ""
