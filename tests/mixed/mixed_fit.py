"""Keras's fit, the same program on either backend."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
from keras import layers
from mixed_data import BATCH, CLASSES, EPOCHS, HIDDEN, INPUTS, SEED, images, numbers, weights

import dream
from dream._log import warn_once

Figures = Any
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def block(**options: Any) -> Any:
    return dream.strategy(None, seed=SEED, **options)


def model_of(optimizer: Any = None, **options: Any) -> Any:
    model = keras.Sequential(
        [keras.Input((INPUTS,)), layers.Dense(HIDDEN, "relu"), layers.Dense(CLASSES)]
    )
    model.set_weights(weights((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)))
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, LOSS, metrics=["accuracy"], **options)
    return model


def mlp() -> Figures:
    x, y = numbers()
    with block():
        model = model_of()
        history = model.fit(
            x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(x[:30], y[:30])
        )
        said = model.predict(x, batch_size=BATCH, verbose=0)
    return model.get_weights(), history.history, said


def adamw() -> Figures:
    with block():
        model = model_of(keras.optimizers.AdamW(0.01))
        model.fit(*numbers(), batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return model.get_weights()


class Pairs(keras.utils.PyDataset):
    def __init__(self, turned: int = 0) -> None:
        super().__init__()
        x, y = numbers()
        self.x, self.y = np.roll(x, turned, 0), np.roll(y, turned)

    @property
    def num_batches(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


def batches() -> Figures:
    """A source that yields global batches: every rank reads all."""
    with block():
        model = model_of()
        model.fit(Pairs(), epochs=EPOCHS, verbose=0)
    return model.get_weights()


def outputs() -> Figures:
    """The loss of each of several outputs is a figure of its own."""
    x, y = numbers()
    with block():
        inputs = keras.Input((INPUTS,))
        both = [layers.Dense(CLASSES, name=n, kernel_initializer="ones")(inputs) for n in "ab"]
        model = keras.Model(inputs, both)
        model.compile(keras.optimizers.SGD(0.1), [LOSS, LOSS])
        history = model.fit(x, [y, y], batch_size=BATCH, epochs=2, verbose=0)
    return model.get_weights(), history.history


def looked_up() -> Figures:
    """What is said of a table whose entries come several times in a batch."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    warn_once._said.clear()
    logging.getLogger("dream").addHandler(handler)
    with block():
        model = keras.Sequential(
            [keras.Input((3,)), layers.Embedding(5, 2), layers.Flatten(), layers.Dense(CLASSES)]
        )
        model.compile(keras.optimizers.Adam(0.01), LOSS)
        model.fit(np.arange(60).reshape(20, 3) % 5, np.arange(20) % CLASSES, verbose=0)
    logging.getLogger("dream").removeHandler(handler)
    return lines


def batch_by_batch() -> Figures:
    x, y = numbers(40)
    with block():
        model = model_of()
        said = [model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH])[0] for i in (0, BATCH)]
    return model.get_weights(), said


def pictures() -> Figures:
    x, y = images()
    with block(sync_batch_norm=False):
        model = keras.Sequential(
            [
                keras.Input((8, 7, 2)),
                layers.Conv2D(6, 3, strides=2),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(CLASSES),
            ]
        )
        shapes = [tuple(w.shape) for w in model.get_weights()]
        drawn = weights(*shapes)
        model.set_weights([d if len(s) > 1 else w for d, s, w in zip(
            drawn, shapes, model.get_weights(), strict=True)])  # fmt: skip
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS)
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return model.get_weights()


def other_batches() -> Figures:
    """Ranks that read different batches from the same source."""
    with block() as strategy:
        model_of().fit(Pairs(turned=strategy.topology.rank), verbose=0)
