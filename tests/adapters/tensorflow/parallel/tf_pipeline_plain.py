"""Plain scripts that are trained as they are, and in pipelines. Imported by their processes
alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from tf_split_models import told, weights

import dream

SAMPLES, BATCH = 33, 8
"""A last batch of one sample, of which one row of two has none."""


def summed() -> Any:
    """A loss that is a sum, one by its class's own rule, and one that a layer adds."""
    penalised = layers.Dense(12, activity_regularizer=keras.regularizers.L2(0.01))
    loss = keras.losses.MeanSquaredError(reduction="sum")
    return (
        trained(model_of(penalised, layers.Dense(8), Adding()), loss, rate=0.005),
        trained(model_of(layers.Dense(8), layers.Dense(8)), of_the_batch, rate=0.005),
    )


def of_the_batch(target: Any, prediction: Any) -> Any:
    return ops.sum(ops.square(target - prediction))


class Adding(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


def dropped() -> Any:
    """Noise and dropout in both stages, in training alone; then what it predicts."""
    hidden = [layers.Dense(12), layers.Dropout(0.4), layers.GaussianNoise(0.1), layers.Dense(12)]
    model = model_of(*hidden, layers.Dropout(0.3), layers.Dense(8), layers.Dropout(0.2))
    return trained(model, "mse", rate=0.02), model.predict(data()[0], batch_size=5, verbose=0)


def weighed() -> Any:
    """class_weight, and weights of samples; with a metric that weighs, too."""
    found = []
    for weight in ({"class_weight": {0: 0.2, 1: 3.0}}, {"sample_weight": np.linspace(0, 2, 33)}):
        model = model_of(layers.Dense(9, activation="relu"), layers.Dropout(0.3), layers.Dense(9))
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        found.append(trained(model, loss, binary=True, weighted_metrics=["mae"], **weight))
    return found


def stopped() -> Any:
    """It stops by what it is validated with, and steps smaller before that."""
    model = model_of(layers.Dense(32, activation="relu"), layers.Dropout(0.4), layers.Dense(8))
    stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    less = keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=0)
    found = trained(model, "mse", rate=0.2, epochs=9, validation_split=0.3, callbacks=[less, stop])
    return found, stop.stopped_epoch


def accumulated() -> Any:
    """Keras's own accumulation, in batches with dropout."""
    hidden = [layers.Dense(12), layers.Dropout(0.4), layers.Dense(12)]
    return trained(model_of(*hidden), "mse", gradient_accumulation_steps=2)


SCRIPTS: dict[str, Callable[[], Any]] = {
    script.__name__: script for script in (summed, dropped, weighed, stopped, accumulated)
}


def model_of(*hidden: Any) -> Any:
    return keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1)])


def data(*, binary: bool = False) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(SAMPLES, 6)).astype(np.float32)
    return x, (x[:, :1] > 0.4).astype("int32") if binary else np.sin(2 * x[:, :1])


def trained(
    model: Any,
    loss: Any,
    *,
    rate: float = 0.1,
    binary: bool = False,
    epochs: int = 2,
    weighted_metrics: Any = None,
    gradient_accumulation_steps: int | None = None,
    **given: Any,
) -> Any:
    """Fit as a script does, its batches shuffled; return (weights, history)."""
    keras.utils.set_random_seed(11)
    optimizer = keras.optimizers.SGD(
        rate, momentum=0.5, gradient_accumulation_steps=gradient_accumulation_steps
    )
    model.compile(optimizer, loss, metrics=["mae"], weighted_metrics=weighted_metrics)
    x, y = data(binary=binary)
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, **given)
    return weights(model), history.history


def refused() -> dict[str, Any]:
    """What a pipeline cannot do as one device does."""
    mean = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    weight = {"sample_weight": np.linspace(0, 2, SAMPLES)}
    none = keras.losses.MeanSquaredError(reduction="none")
    shared, dense = keras.random.SeedGenerator(1), layers.Dense
    masking = [layers.Reshape((6, 1)), layers.Masking(), layers.LSTM(4), dense(4)]
    stateful = [
        keras.Input(batch_shape=(BATCH, 6)), layers.Reshape((6, 1)),
        layers.GRU(4, stateful=True), dense(1),
    ]  # fmt: skip
    return {
        "weights": told(lambda: trained(model_of(dense(8)), mean, **weight)),
        "unreduced": told(lambda: trained(model_of(dense(8)), none)),
        "loss draws": told(lambda: trained(model_of(dense(8)), noisy)),
        "shared": told(lambda: trained(model_of(Noise(shared), dense(12), Noise(shared)), "mse")),
        "unseeded": told(lambda: trained(model_of(Noise(None), dense(8)), "mse")),
        "mask": told(lambda: trained(model_of(*masking), "mse")),
        "stateful": told(lambda: trained(keras.Sequential(stateful), "mse")),
        "state": told(
            lambda: trained(model_of(layers.SpectralNormalization(dense(8)), dense(8)), "mse")
        ),
    }


def couplings() -> list[list[str]]:
    """What is said of a layer that draws, and of those that couple samples: their outputs, their
    gradients, and by a shuffle."""
    found = []
    coupling = layers.Lambda(centred), layers.Lambda(clipped), Shuffled()
    for layer in (Noise(keras.random.SeedGenerator(1)), *coupling):
        ear = Ear()
        logging.getLogger("dream").addHandler(ear)
        trained(model_of(layers.Dense(8), layer), "mse")
        logging.getLogger("dream").removeHandler(ear)
        found.append([line for line in ear.lines if "couples" in line])
    return found


class Ear(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def centred(x: Any) -> Any:
    return x - ops.mean(x, axis=0)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def clipped(x: Any) -> Any:
    return tf.identity(x), lambda gradient: tf.clip_by_norm(gradient, 0.05)


class Shuffled(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(2)

    def call(self, x: Any) -> Any:
        order = keras.random.shuffle(ops.arange(ops.shape(x)[0]), seed=self.generator)
        return x + 0.1 * ops.take(x, order, axis=0)


def noisy(target: Any, prediction: Any) -> Any:
    return ops.square(target - prediction + keras.random.normal(ops.shape(target)))


class Noise(layers.Layer):
    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.generator = generator

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(ops.shape(x), seed=self.generator)


def plain(names: Iterable[str] = tuple(SCRIPTS)) -> dict[str, Any]:
    """Run scripts without dream."""
    found = {}
    for name in names:
        keras.utils.set_random_seed(7)
        found[name] = SCRIPTS[name]()
    return found


def hybrid(names: Iterable[str]) -> dict[str, Any]:
    """Run scripts in two rows of two stages."""
    with dream.strategy("hybrid", data=2, model=2):
        return plain(names)


def stages(one_row: Iterable[str], two_rows: Iterable[str]) -> dict[str, Any]:
    """Run scripts in one row of two stages, and in two of one, in one process."""
    several = {"devices": 2, "microbatches": 4}
    with dream.strategy("model_parallel", split="pipeline", **several):
        found = {"one row": plain(one_row), "refused": refused(), "couplings": couplings()}
    with dream.strategy("model_parallel", split="pipeline", **several, recompute=True):
        keras.utils.set_random_seed(7)
        found["recomputed"] = dropped()
    with dream.strategy("hybrid", data=2, model=1, devices=2, microbatches=2):
        return found | {"two rows": plain(two_rows)}
