"""The gradient of a whole model clipped by its norm, wherever its parts lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def squares(gradients: Sequence[Any]) -> Any:
    """The square of the common 2-norm of those that are there."""
    present = [g for g in gradients if g is not None]
    found = [tf.reduce_sum(tf.square(tf.cast(g, tf.float32))) for g in present]
    return tf.add_n([tf.zeros(()), *found])


def scaled(gradients: Sequence[Any], squares: Any, most: float) -> list[Any]:
    """Scaled down together where their norm is above `most`."""
    norm = tf.sqrt(squares)
    scale = most / tf.maximum(norm, most) if most else tf.zeros_like(norm)
    return [None if g is None else g * tf.cast(scale, g.dtype) for g in gradients]


def clipped(gradients: Sequence[Any], most: float) -> list[Any]:
    return scaled(gradients, squares(gradients), most)
