"""Means over things that the parts hold unequal numbers of: tokens, unmasked pixels."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from dream.adapters.keras import step
from dream.adapters.tensorflow.training import Total


def weigh(loss: Any, count: Any, parts: int, total: Total | None) -> Any:
    """`loss`, a mean over `count` things on this part, such that the mean over the parts is the
    mean over all things; exactly 0 where the count is 0. The optimizer that is applied next
    reduces its gradients as they are."""
    if total is None:
        return loss
    mine = tf.cast(tf.reshape(count, []), loss.dtype)
    (everyone,) = total([mine])
    step.announce()
    return tf.math.multiply_no_nan(loss, tf.math.divide_no_nan(mine * parts, everyone))
