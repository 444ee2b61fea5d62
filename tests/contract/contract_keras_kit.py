"""Data and models of the Keras cases, on either backend."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
from contract_case import Cases
from keras import layers

CASES = Cases()
BATCH = 16
EPOCHS = 5  # of four batches: 20 steps
SHORT = 2  # epochs, where the law is no matter of drift
TF = keras.backend.backend() == "tensorflow"
LOGITS = {"from_logits": True}


def start() -> None:
    """The same generators before every case. Nothing here is an op, which TensorFlow would not
    forgive before the first block."""
    keras.utils.set_random_seed(1)
    if not TF:
        import torch

        torch.set_num_threads(1)


def arrays(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of shape (samples, 8) and classes below 4; the classes depend on the inputs, and
    samples differ in size, so that a wrong weight of any one shows."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(samples, 8)).astype(np.float32)
    x *= draw.uniform(0.5, 2.0, size=(samples, 1)).astype(np.float32)
    return x, np.abs(x[:, :4]).argmax(axis=1)


def momentum(**options: Any) -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def adamw(**options: Any) -> Any:
    return keras.optimizers.AdamW(1e-2, **options)


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def net(*before: Any) -> Any:
    return keras.Sequential(
        [keras.Input((8,)), *before, layers.Dense(16, activation="tanh"), layers.Dense(4)]
    )


def compiled(optimizer: Any, *before: Any, **options: Any) -> Any:
    model = net(*before)
    model.compile(optimizer, loss(), **{"metrics": ["accuracy"], **options})
    return model


def parameters(model: Any) -> dict[str, np.ndarray]:
    """Copies of all variables, named by place, since Keras numbers names process-wide."""
    return {f"{index}": value.copy() for index, value in enumerate(model.get_weights())}


def optimizer_state(model: Any) -> dict[str, np.ndarray]:
    """The optimizer's variables, its counter and rate among them."""
    return {
        f"{index}": np.array(keras.ops.convert_to_numpy(variable))
        for index, variable in enumerate(model.optimizer.variables)
    }


def numbers(logs: Any) -> dict[str, float]:
    return {name: float(value) for name, value in dict(logs).items()}


class Told(keras.callbacks.Callback):
    """Remembers the logs that a callback is given."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, float]] = []
        self.epochs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(numbers(logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(numbers(logs))


class Heard(logging.Handler):
    """Remembers what dream said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
