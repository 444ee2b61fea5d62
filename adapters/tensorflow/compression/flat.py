"""Gradients end to end, and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tensorflow as tf


def sizes(variables: Sequence[Any]) -> list[int]:
    """How many elements each has."""
    return [prod(v.shape) for v in variables]


def flat(gradients: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    return tf.concat([tf.cast(tf.reshape(g, [-1]), dtype) for g in gradients], 0)


def like(
    whole: tf.Tensor, variables: Sequence[Any], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """whole: the elements of all. Each in its variable's shape and its gradient's dtype."""
    parts = tf.split(whole, sizes(variables))
    return [
        tf.cast(tf.reshape(part, variable.shape), gradient.dtype)
        for part, variable, gradient in zip(parts, variables, gradients, strict=True)
    ]
