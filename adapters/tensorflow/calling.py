"""How losses and metrics are called, and a batch's samples counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dream.adapters.keras.forward import score

Batch = tuple[Any, ...]


def judge(function: Callable[..., Any], prediction: Any, target: Any) -> tf.Tensor:
    """What a loss or a metric says of a batch, as a tensor."""
    return tf.convert_to_tensor(score(function, prediction, target))


def count(batch: Batch) -> tf.Tensor:
    """How many samples a batch has: the length of its first tensor, as float32."""
    first = tf.nest.flatten(batch)[0]
    return tf.cast(tf.shape(first)[0], tf.float32)
