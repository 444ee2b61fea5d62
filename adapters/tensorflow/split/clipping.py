"""The gradient of a whole model clipped by its norm, wherever its parts lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def clipped(gradients: Sequence[Any], most: float) -> list[Any]:
    """Scaled down together where their common 2-norm is above `most`."""
    present = [g for g in gradients if g is not None]
    squares = tf.add_n([tf.reduce_sum(tf.square(tf.cast(g, tf.float32))) for g in present])
    norm = tf.sqrt(squares)
    scale = most / tf.maximum(norm, most) if most else tf.zeros_like(norm)
    return [None if g is None else g * tf.cast(scale, g.dtype) for g in gradients]
