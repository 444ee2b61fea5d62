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


def branches() -> dict[str, Any]:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
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
