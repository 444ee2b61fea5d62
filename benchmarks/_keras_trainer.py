"""A process that trains by Keras's `fit`, an epoch for each line it is sent: KIND MODEL STEPS.

It answers each line with the seconds that a step took. Two logical CPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 64
Layers = list[Any]


def mlp() -> Layers:
    return [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]


def cnn() -> Layers:
    return [
        keras.layers.Reshape((28, 28, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]


MODELS: dict[str, Callable[[], Layers]] = {"MLP 784-64-10": mlp, "small CNN": cnn}


def compiled(layers: Callable[[], Layers], kind: type[Any] = keras.Sequential) -> Any:
    model = kind([keras.Input((784,)), *layers()])
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def raw(layers: Callable[[], Layers]) -> Any:
    """tf.distribute's own strategy on two logical CPUs."""
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return compiled(layers)


def dreamt(layers: Callable[[], Layers]) -> Any:
    import dream

    with dream.strategy("mirrored", framework="tensorflow", devices=2):
        return compiled(layers)


def main(kind: str, name: str, steps: str) -> None:
    model = {"raw": raw, "dream": dreamt}[kind](MODELS[name])
    draw = np.random.default_rng(0)
    count = int(steps) * BATCH
    x = draw.standard_normal((count, 784), dtype=np.float32)
    y = draw.integers(0, 10, count)
    for _ in sys.stdin:
        begin = perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
        print((perf_counter() - begin) / int(steps), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
