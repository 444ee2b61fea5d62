"""What ranks of TensorFlow's own parameter servers run: the script is the chief's alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import dream

SAMPLES, BATCH, EPOCHS = 200, 32, 3
"""The last batch of an epoch has 8."""

UPDATES = 300


def arrays() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype("float32")
    return x, (x.sum(1) > 0).astype("int64")


def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices(arrays())


def judge() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def right(prediction: Any, target: Any) -> Any:
    return tf.cast(tf.argmax(prediction, 1) == target, tf.float32)


def said(call: Callable[[], Any]) -> str:
    """What a refusal says; empty where there is none."""
    try:
        call()
    except dream.DreamError as error:
        return str(error)
    return ""


def stepped(options: dict[str, Any], optimizer: str, file: str = "") -> dict[str, Any]:
    """Train by train_step, each step waited for; options: empty for one device."""
    keras.utils.set_random_seed(0)
    name = "parameter_server" if options else "single"
    with dream.strategy(name, **options) as strategy:
        model = keras.Sequential(
            [
                keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2), keras.layers.Dense(2, kernel_regularizer="l2"),
            ]
        )  # fmt: skip
        chosen = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.05}})
        data = strategy.prepare(dataset().shuffle(SAMPLES, seed=1).batch(BATCH))
        step = strategy.train_step(model, judge(), chosen)
        losses = []
        for _ in range(EPOCHS):
            for batch in data:
                losses.append(step(*batch))
                if options:
                    strategy.join()
        figures = strategy.evaluate(model, data, {"right": right})
        if file:
            model.save_weights(file)
            model.load_weights(file)
    # what was made in the block stays the servers'
    return {
        "state": {k.partition("/")[2]: v for k, v in strategy.full_state(model).items()},
        "losses": [float(value) for value in losses],
        "figures": figures,
        "count": int(chosen.iterations),
        "role": strategy.topology.role,
        "shards": [len(getattr(v.value, "variables", [1])) for v in model.trainable_variables],
        "refused": options
        and {
            name: said(lambda name=name: getattr(model, name)(*arrays()))
            for name in ("fit", "predict")
        },
    }


def handed_out() -> dict[str, Any]:
    """A loop of the script's own: each worker reads data that it makes for itself."""
    keras.utils.set_random_seed(0)
    with dream.strategy("parameter_server", engine="tensorflow", workers=2) as strategy:
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(2)])
        optimizer, loss = keras.optimizers.Adam(0.01), judge()
        optimizer.build(model.trainable_variables)
        batches = strategy.prepare(lambda: dataset().batch(BATCH).repeat())

        def train(batches: Any) -> dict[str, Any]:
            x, y = next(batches)
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            optimizer.apply(tape.gradient(value, model.trainable_variables))
            return {"loss": value, "samples": tf.shape(x)[0]}

        told = [strategy.schedule(train, args=(batches,)) for _ in range(UPDATES)]
        strategy.join()
        first, last = strategy.fetch([told[0], told[-1]])
        whole = strategy.fetch(strategy.schedule(model, args=(arrays()[0],)))

        def wrong(x: Any) -> Any:
            tf.debugging.assert_less(x, 0.0, "an error of the function")
            return x

        strategy.schedule(wrong, args=(tf.constant(1.0),))
        try:
            strategy.join()
        except tf.errors.InvalidArgumentError as error:
            own = str(error)
        accumulating = said(lambda: keras.optimizers.SGD(gradient_accumulation_steps=2))
    return {
        "first": first, "last": last, "own error": own,
        "count": int(optimizer.iterations), "outputs": whole.shape,
        "outside": said(lambda: strategy.train_step(model, loss, keras.optimizers.SGD(0.1))),
        "accumulating": accumulating,
        "communicator": said(lambda: strategy.communicator),
    }  # fmt: skip


def cut_where_it_cannot_be() -> dict[str, str]:
    options = {"engine": "tensorflow", "workers": 1, "servers": 2, "partitioner": "fixed:2"}
    with dream.strategy("parameter_server", **options) as strategy:
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        batch = arrays()[0], np.zeros((SAMPLES, 4), "float32")

        def step(optimizer: Any) -> str:
            return said(
                lambda: strategy.train_step(model, keras.losses.MeanSquaredError(), optimizer)(
                    *batch
                )
            )

        def own(x: Any) -> Any:
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(model(x))
            return tape.gradient(value, model.trainable_variables)

        return {
            "optimizer": step(keras.optimizers.Adafactor()),
            "clipnorm": step(keras.optimizers.SGD(clipnorm=1.0)),
            "own": said(lambda: strategy.schedule(own, args=(batch[0],))),
        }


def on_one_device(optimizer: str, file: str) -> tuple[dict[str, Any], list[Any]]:
    """What one device trains, and what it reads of the servers' file."""
    return stepped({}, optimizer), weights_of(file)


def weights_of(file: str) -> list[Any]:
    """Read by a model of one device."""
    model = keras.Sequential(
        [
            keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2), keras.layers.Dense(2),
        ]
    )  # fmt: skip
    model.load_weights(Path(file))
    return list(model.get_weights())
