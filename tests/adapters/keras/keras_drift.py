"""Keras trainings whose ranks part, each in its way, and what is said of it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

import dream
from dream.data import generators

SAMPLES, BATCH = 35, 8
Act = Callable[[int, int, Any], None]


class Acts(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Does something after each batch, by this rank's number and the batch's."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self._act = act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._act(_rank(), batch, self.model)


class CountsItsSamples(keras.layers.Layer):  # type: ignore[misc]
    """A layer whose call changes a whole number."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="seen"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign(self.seen + keras.ops.shape(x)[0])
        return x


class OrderedBySet(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches with labels that each rank counts in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        names = ["bird", "cat", "dog"][:: -1 if _rank() else 1]
        numbers = {name: number for number, name in enumerate(names)}
        self._x, _ = data()
        self._y = np.array([[numbers["bird"]]] * SAMPLES, "float32")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        here = slice(index * BATCH, (index + 1) * BATCH)
        return self._x[here], self._y[here]


def _rank() -> int:
    current = dream.current()
    assert current is not None
    return current.topology.rank


def data() -> tuple[Any, Any]:
    x = np.random.default_rng(3).random((SAMPLES, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def model(*layers: Any, rate: float = 0.05) -> Any:
    made = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, name="last")])
    made.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
    return made


def weight_touched(rank: int, batch: int, touched: Any) -> None:
    if rank == 1 and batch == 1:
        bias = touched.layers[-1].bias
        bias.assign(bias + 1.0)


def rate_parts(rank: int, batch: int, touched: Any) -> None:
    if rank == 1 and batch == 1:
        touched.optimizer.learning_rate.assign(0.025)


def draws(rank: int, *_: Any) -> None:
    if rank == 0:
        random.random()
        np.random.random(3)
        keras.random.normal((2,))
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.random.normal((2,))
        else:
            import torch

            torch.rand(2)


WAYS: dict[str, Callable[[], Any]] = {
    "weight": lambda: _said(lambda: _fit(model(), weight_touched)),
    "weight by hand": lambda: _said(lambda: _on_batch(weight_touched)),
    "rate": lambda: _said(lambda: _fit(model(), rate_parts)),
    "rate from the start": lambda: _said(lambda: _fit(model(rate=0.05 * (1 + _rank())))),
    "last step": lambda: _said(lambda: _fit(model(), _after_the_last)),
    "labels": lambda: _labels(),
    "state": lambda: _state(),
    "draws": lambda: _drawn(),
    "unseeded": lambda: _heard(_unseeded, "train_on_batch and"),
    "well": lambda: _comparisons(),
}


def parted(names: Sequence[str]) -> dict[str, Any]:
    """What each of them came to, on this rank."""
    with dream.strategy("mirrored"):
        return {name: WAYS[name]() for name in names}


def _after_the_last(rank: int, batch: int, touched: Any) -> None:
    if rank == 1 and batch == (SAMPLES - 1) // BATCH:
        touched.layers[-1].bias.assign([5.0])


def _fit(made: Any, *acts: Act) -> None:
    made.fit(*data(), batch_size=BATCH, verbose=0, callbacks=[Acts(act) for act in acts])


def _on_batch(act: Act) -> None:
    made, (x, y) = model(), data()
    for step in range(8):
        made.train_on_batch(x[:5], y[:5])
        act(_rank(), step, made)


def _said(run: Callable[[], None]) -> str:
    try:
        run()
    except dream.DreamError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _labels() -> tuple[str, float]:
    """What is said, and how far the weights have moved."""
    made = model()
    before = made.get_weights()
    said = _said(lambda: made.fit(OrderedBySet(), verbose=0))
    moved = zip(before, made.get_weights(), strict=True)
    return said, max(float(np.abs(a - b).max()) for a, b in moved)


def _state() -> tuple[int, list[str]]:
    """The whole number that a layer's call counts, and what is said of it."""
    layer = CountsItsSamples()
    made = model(layer)

    def twice() -> None:
        for _ in range(2):
            _fit(made)

    said = _heard(twice, "a state that")
    return int(layer.seen.value), said


def _unseeded() -> None:
    """Batches in an order that each rank draws for itself."""
    made, (x, y) = model(), data()
    order = random.SystemRandom().sample(range(SAMPLES), SAMPLES)
    for start in range(0, SAMPLES, BATCH):
        rows = order[start : start + BATCH]
        made.train_on_batch(x[rows], y[rows])


def _heard(run: Callable[[], None], words: str) -> list[str]:
    """What dream says with these words as it runs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    run()
    logging.getLogger("dream").removeHandler(handler)
    return [line for line in lines if words in line]


def _drawn() -> list[float]:
    """What every generator draws after a fit in which rank 0 alone has drawn."""
    keras.utils.set_random_seed(7)
    dropout = keras.layers.Dropout(0.5)
    made = model(dropout)
    _fit(made, draws)
    found = [random.random(), float(np.random.random()), *generators.numpy_words()[:1]]
    ops = keras.ops.convert_to_numpy
    found.append(float(ops(keras.random.normal(()))))
    found.append(float(ops(dropout(np.ones((1, 64), "float32"), training=True)).sum()))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found.append(float(tf.random.normal(())))
    else:
        import torch

        found.append(float(torch.rand(())))
    return found


def _comparisons() -> int:
    """Count the comparisons of a training in which all is well."""
    from dream.adapters.keras.update.drift import DriftGuard

    own, counted = DriftGuard.compare, 0

    def compare(*args: Any) -> None:
        nonlocal counted
        counted += 1
        own(*args)

    DriftGuard.compare = compare  # type: ignore[method-assign]
    made, (x, y) = model(), data()
    for _ in range(80):
        made.train_on_batch(x[:4], y[:4])
    DriftGuard.compare = own  # type: ignore[method-assign]
    return counted
