"""The digits run by Keras's `fit`: FOLDER NAME KIND REPLICAS. Kinds: one, raw, dream, ranks."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import _digits
import keras
import tensorflow as tf

import dream


def scope(kind: str, replicas: int) -> AbstractContextManager[Any]:
    """Where the model is made. ranks: this process is one of several replicas."""
    if kind == "one":
        return nullcontext()
    if kind == "dream":
        return dream.strategy("mirrored", framework="tensorflow", devices=replicas)
    if kind == "ranks":
        return dream.strategy("mirrored", framework="tensorflow")
    cpus = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
    return strategy.scope()


def network() -> Any:
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu", name="hidden"),
            keras.layers.Dense(10, name="output"),
        ]
    )
    first = _digits.first_weights()
    for layer in model.layers:
        layer.set_weights([first[f"{layer.name}.kernel"], first[f"{layer.name}.bias"]])
    model.compile(
        keras.optimizers.SGD(_digits.RATE, momentum=_digits.MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def main(folder: str, name: str, kind: str, replicas: str) -> None:
    try:
        learned: _digits.Arrays | str = train(kind, int(replicas))
    except tf.errors.InvalidArgumentError as error:
        print(f"failed: {error}", file=sys.stderr)
        learned = "fails"
    if os.environ.get("RANK", "0") == "0":
        _digits.save(folder, name, learned)


def train(kind: str, replicas: int) -> _digits.Arrays:
    x, y = _digits.samples()
    with scope(kind, replicas):
        model = network()
        model.fit(x, y, batch_size=_digits.BATCH, epochs=_digits.EPOCHS, shuffle=False, verbose=0)
    weights = (weight for layer in model.layers for weight in layer.get_weights())
    return {str(index): weight for index, weight in enumerate(weights)}


if __name__ == "__main__":
    main(*sys.argv[1:])
