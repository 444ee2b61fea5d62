"""What a step on a mesh does in branches of tf.cond, and draws by TensorFlow's own operations."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tf_split_models import told, weights

import dream


class DrawnByTensorFlow(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Adds noise by an operation of TensorFlow's own."""

    def call(self, x: Any) -> Any:
        return x + tf.random.stateless_normal(tf.shape(x), seed=[1, 2])


def trained(*more: Any, **options: Any) -> Any:
    """A model that Adam has updated once for two batches each."""
    keras.utils.set_random_seed(3)
    seen = keras.Input((4,))
    found = layers.BatchNormalization()(layers.Dense(8, "tanh")(seen))
    for layer in more:
        found = layer(found)
    model = keras.Model(seen, layers.Dense(1)(found))
    model.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, **options), "mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    model.fit(x, x[:, :1], batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model


class Counting(keras.Model):  # type: ignore[misc]
    """Counts samples in a train_step that assigns its counts by `counted(counts, sums, now)`."""

    counted: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.sums = self.add_weight(shape=(2,), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        return x

    def train_step(self, batch: Any) -> dict[str, Any]:
        now = tf.reduce_sum(tf.ones_like(batch[:, :2]), 0)
        self.counted(now)
        return {"loss": tf.reduce_mean(batch)}


def twice(self: Any, now: Any) -> None:
    self.sums.assign_add(now)
    self.sums.assign(tf.ones_like(now))


def emptied_in_a_branch(self: Any, now: Any) -> None:
    self.sums.assign_add(now)
    tf.cond(self.sums[0] > 20, lambda: twice(self, now), lambda: None)


def emptied_by_a_product(self: Any, now: Any) -> None:
    total = self.sums + now
    self.sums.assign(total * tf.cast(total[0] < 20, total.dtype))


def emptied_by_one_condition(self: Any, now: Any) -> None:
    total = self.sums + now
    self.sums.assign(keras.ops.where(total[0] < 20, total, tf.zeros_like(total)))


def emptied_by_many(self: Any, now: Any) -> None:
    total = self.sums + now
    fewer = tf.fill(tf.shape(total), total[0] < 20)
    self.sums.assign(keras.ops.where(fewer, total, tf.zeros_like(total)))


def drawn_by_tensorflow(self: Any, now: Any) -> None:
    self.sums.assign_add(now * tf.random.uniform(()))


class Denoising(keras.Model):  # type: ignore[misc]
    """Calls the loss that it is compiled with by targets that it makes, and counts in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
        self.calls = 0

    def call(self, x: Any) -> Any:
        return self.net(x)

    def train_step(self, x: Any) -> dict[str, Any]:
        self.calls += 1
        with tf.GradientTape() as tape:
            loss = self.loss(x, self.net(x / 2, training=True))
        found = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(found, self.trainable_variables)
        return {"loss": loss}


def denoised() -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    model = Denoising()
    model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanAbsoluteError())
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    logs = model.fit(x, batch_size=8, shuffle=False, verbose=0).history
    return [*weights(model), np.array(logs["loss"])]


def scored() -> list[np.ndarray]:
    """Logs of a metric that computes with its states, at an epoch's end too."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    model.compile("sgd", "mse", metrics=[keras.metrics.R2Score()])
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    logs = model.fit(x, x[:, :2], validation_data=(x, x[:, 2:]), shuffle=False, verbose=0).history
    return [np.array(logs[name]) for name in sorted(logs)]


def counting(counted: Any) -> list[Any]:
    """What is counted after each epoch, of three."""
    model = type("Counting", (Counting,), {"counted": counted})()
    model.compile("sgd")
    found: list[Any] = []
    for _ in range(3):
        model.fit(np.ones((8, 3), "float32"), batch_size=8, verbose=0)
        found.append(np.array(model.sums))
    return found


def assigned() -> dict[str, Any]:
    """What steps count that assign in several ways; what is said of those that may not."""
    found: dict[str, Any] = {}
    ways = (twice, emptied_by_a_product, emptied_by_many)
    lines = warned()
    with dream.strategy("sharded", devices=2):
        found["shared"] = [counting(way) for way in ways], scored(), denoised()
        for way in (emptied_in_a_branch, emptied_by_one_condition, drawn_by_tensorflow):
            found[way.__name__] = told(lambda way=way: counting(way))
    found["said"] = "".join(lines)
    return {**found, "alone": ([counting(way) for way in ways], scored(), denoised())}


def warned() -> list[str]:
    """What dream warns of from now on."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    return lines


def branches() -> dict[str, Any]:
    lines = warned()
    with dream.strategy("sharded", devices=2):
        shared = weights(trained())
        averaged = told(lambda: trained(use_ema=True, ema_overwrite_frequency=2))
        before = list(lines)
        trained(DrawnByTensorFlow())
    alone = weights(trained())
    return {
        "alone": alone, "shared": shared, "averaged": averaged,
        "quiet": not any("StatelessRandom" in line for line in before), "said": "\n".join(lines),
    }  # fmt: skip
