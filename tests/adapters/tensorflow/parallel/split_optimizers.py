"""What processes do in the tests of optimizers whose variables lie in parts."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from split_scenes import (
    bytes_held,
    bytes_whole,
    data,
    fitted,
    loss,
    momentum,
    scaled,
    weights,
    wide,
)

import dream

BATCH, EPOCHS = 16, 5


def adamw() -> Any:
    return keras.optimizers.AdamW(0.01)


def ranks() -> dict[str, Any]:
    """Two processes, 20 steps of AdamW; and plain Keras, after the blocks."""
    found: dict[str, Any] = {}
    with dream.strategy("sharded"):
        model = fitted(wide(), adamw(), EPOCHS)
        found["sharded"] = weights(model)
        states = [v for v in model.optimizer.variables if v.shape.rank]
        found["states"] = bytes_held(states), bytes_whole(states)
    with dream.strategy("model_parallel", split="tensor", clip_norm=0.05):
        found["scaled"] = weights(fitted(wide(), scaled()))
    with dream.strategy("model_parallel", split="tensor"):
        found["tensor"] = weights(fitted(wide(), adamw(), EPOCHS))
    found["one scaled"] = weights(fitted(wide(), momentum(global_clipnorm=0.05)))
    return found | alone()


def stages() -> dict[str, Any]:
    """Two processes that are stages."""
    with dream.strategy("model_parallel", split="pipeline"):
        found = {"pipeline": weights(fitted(wide(), adamw(), EPOCHS))}
    return found | alone()


def alone() -> dict[str, Any]:
    """One device, and the same with its sums in other orders."""
    return {
        "one": weights(fitted(wide(), adamw(), EPOCHS)),
        "in parts": [in_parts(wide(), parts) for parts in (2, 4)],
    }


def in_parts(model: Any, parts: int) -> list[np.ndarray]:
    """One device's own training with each batch summed in as many parts."""
    optimizer, judge, (x, y) = adamw(), loss(), data()
    for begin in [*range(0, len(x), BATCH)] * EPOCHS:
        total: list[Any] = []
        a, b = x[begin : begin + BATCH], y[begin : begin + BATCH]
        for part in range(parts):
            with tf.GradientTape() as tape:
                value = judge(b[part::parts], model(a[part::parts], training=True))
            share = len(b[part::parts]) / len(b)
            found = tape.gradient(value, [v.value for v in model.trainable_variables])
            found = [g * share for g in found]
            total = [s + g for s, g in zip(total, found, strict=True)] if total else found
        optimizer.apply(total, model.trainable_variables)
    return weights(model)
