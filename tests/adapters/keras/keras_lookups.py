"""Embeddings whose entries come many times in a batch, by optimizers that square their gradient."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import dream


class OwnStep(keras.Model):  # type: ignore[misc]  # Keras is untyped
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Taped:
    """A loop around a tape: whole batches on every rank."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, x: Any, y: Any) -> None:
        for begin in range(0, len(x), 16):
            inputs, targets = x[begin : begin + 16], y[begin : begin + 16]
            with tf.GradientTape() as tape:
                loss = keras.losses.BinaryCrossentropy()(targets, self.model(inputs))
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.model.optimizer.apply_gradients(
                zip(gradients, self.model.trainable_variables, strict=True)
            )


WAYS: dict[str, dict[str, bool]] = {
    "fit": {"own_step": False},
    "own step": {"own_step": True},
    "taped": {"own_step": False, "taped": True},
}


def trained(optimizer: str, ways: Sequence[str]) -> dict[str, dict[str, list[Any]]]:
    """By each way, without dream and in the block. Without dream rank 0 alone trains."""
    blocks = {"replicas": lambda: dream.strategy("mirrored")}
    if os.environ.get("RANK", "0") == "0":
        blocks["plain"] = nullcontext
    return {
        way: {name: _weights(block(), optimizer, **WAYS[way]) for name, block in blocks.items()}
        for way in ways
    }


def stepped(optimizer: str) -> list[Any]:
    """By train_step, which says that it adds rows up."""
    return _weights(dream.strategy("mirrored"), optimizer, own_step=False, step=True)


def fitted(optimizer: str) -> list[Any]:
    """By a fit whose strategy adds rows up, and says so."""
    return _weights(dream.strategy("mirrored"), optimizer, own_step=False)


def _weights(
    block: AbstractContextManager[Any],
    optimizer: str,
    *,
    own_step: bool,
    taped: bool = False,
    step: bool = False,
) -> list[np.ndarray[Any, Any]]:
    keras.utils.set_random_seed(3)
    x = np.random.randint(0, 12, (51, 7))
    y = (x.sum(1, keepdims=True) % 2).astype("float32")
    with block as strategy:
        words = keras.Input((7,), dtype="int32")
        hidden = keras.layers.Flatten()(keras.layers.Embedding(30, 6)(words))
        output = keras.layers.Dense(1, activation="sigmoid")(hidden)
        model = (OwnStep if own_step else keras.Model)(words, output)
        made = keras.optimizers.get({"class_name": optimizer, "config": {"clipnorm": 0.05}})
        model.compile(made, "binary_crossentropy")
        if step:
            train = strategy.train_step(model, keras.losses.BinaryCrossentropy(), made)
            train(x[:16], y[:16])
        elif taped:
            Taped(model).fit(x, y)
        else:
            model.fit(x, y, batch_size=16, epochs=2, verbose=0)
        weights: list[np.ndarray[Any, Any]] = model.get_weights()
        return weights
