"""The gradient of a model whose parts lie on several ranks: clipped by its norm, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from dream._errors import Unsupported
from dream.update.update import Knobs


def limit(optimizer: Any, knobs: Knobs) -> float | None:
    """The largest norm of the whole gradient, as dream or Keras was told; None for any. Keras
    itself would take the norm of what is here for it."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    most = inner.global_clipnorm if knobs.clip_norm is None else knobs.clip_norm
    steps = inner.gradient_accumulation_steps
    if most is not None and steps:
        raise Unsupported(
            "Keras clips what it has accumulated, by the norm of what this rank has. Received: a "
            f"largest norm of {most} with gradient_accumulation_steps={steps}. Use accumulate= of "
            "the strategy in its place, or one process with devices=."
        )
    return None if most is None else float(most)


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


def finite(gradients: Sequence[Any]) -> Any:
    """Whether all of them are."""
    present = [tf.reduce_all(tf.math.is_finite(g)) for g in gradients if g is not None]
    return tf.reduce_all(tf.stack([tf.constant(True), *present]))
