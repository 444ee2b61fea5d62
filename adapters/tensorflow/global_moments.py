"""Mean and variance over the samples of all parts, and their gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

Total = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]


def global_moments(
    x: tf.Tensor, axes: Sequence[int], mask: Any, total: Total, present: Any, worth: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Each of shape (channels,).

    mask: which places count, of x's shape without its last dim; None for all. total: the sum over
    the parts. present: 0 where this part's samples do not count. worth: what gradients of this
    part are multiplied by later; those of others are divided by it here.
    """
    present = tf.cast(tf.cast(present, tf.float32) > 0, x.dtype)
    weights = present if mask is None else present * tf.cast(mask, x.dtype)[..., None]
    spare = 0.0 if mask is None else keras.backend.epsilon()
    along = [1 if i in axes else -1 for i in range(x.shape.rank)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(x: tf.Tensor) -> Any:
        count, first, second = _sums(x, weights, axes, along, masked=mask is not None)
        (sums,) = total([tf.concat([count[None], first, second], 0)])
        number = sums[0] + spare
        first, second = tf.split(sums[1:], 2)
        mean = first / number
        spread = second - 2.0 * mean * first + sums[0] * mean * mean
        variance = tf.maximum(spread / number, 0.0)
        centre, size = tf.cast(mean, x.dtype), tf.cast(number, x.dtype)

        def back(by_mean: tf.Tensor, by_variance: tf.Tensor) -> tf.Tensor:
            mine = tf.concat([by_mean, by_variance], 0)
            mine = tf.where(present > 0, mine, tf.zeros_like(mine))
            scale = tf.cast(worth, x.dtype)
            (theirs,) = total([mine * scale])
            shift, stretch = tf.split(tf.math.divide_no_nan(theirs, scale), 2)
            spread = (x - tf.reshape(centre, along)) * tf.reshape(2.0 * stretch, along)
            return weights * (tf.reshape(shift, along) + spread) / size

        return (centre, tf.cast(variance, x.dtype)), back

    mean, variance = run(x)
    return mean, variance


def _sums(
    x: tf.Tensor, weights: tf.Tensor, axes: Sequence[int], along: list[int], *, masked: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(number, sum, sum of squares) of this part by channel, in float64. About the part's own
    mean first, which keeps the digits of small spreads."""
    if masked:
        number = tf.reduce_sum(weights)
    else:
        number = weights * tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), list(axes))), x.dtype)
    mean = tf.math.divide_no_nan(tf.reduce_sum(x * weights, axes), number)
    spread = tf.reduce_sum(weights * tf.square(x - tf.reshape(mean, along)), axes)
    count, mean, spread = (tf.cast(t, tf.float64) for t in (number, mean, spread))
    return count, count * mean, spread + count * mean * mean
