"""Adasum, as `dream.update.compression` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import tensorflow as tf

from dream.adapters.keras.engine import Exchange
from dream.adapters.tensorflow.compression.flat import flat, like, sizes
from dream.collectives import Wire
from dream.update.compression import TINY, check_ranks


@final
class Adasum(Exchange):
    """Every rank gets all gradients, and reckons what pairs of them find, and pairs of pairs: sends
    and receives would not run in a graph. Sent: the gradient, to every other rank."""

    def __init__(self, wire: Wire, world_size: int) -> None:
        check_ranks(world_size)
        self._wire, self._world_size = wire, world_size

    def __call__(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        sent = tf.bitcast(flat(gradients, tf.float32), tf.int32)
        came = tf.bitcast(self._wire.all_gather(sent), tf.float32)
        ranks = tf.split(tf.reshape(came, [self._world_size, -1]), sizes(variables), axis=1)
        return like(tf.concat([_of_all(rows) for rows in ranks], 0), variables, gradients)


def _of_all(rows: tf.Tensor) -> tf.Tensor:
    """Of one parameter's gradients, a row for each rank."""
    count: int = rows.shape[0]
    while count > 1:
        rows = adasum(rows[0::2], rows[1::2])
        count //= 2
    return rows[0]


def adasum(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Of each row of a and the row of b beside it; products are summed in float64."""
    a, b = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    dot = tf.reduce_sum(a * b, 1, keepdims=True)
    return tf.cast(_share(dot, a) * a + _share(dot, b) * b, tf.float32)


def _share(dot: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
    square = tf.reduce_sum(of * of, 1, keepdims=True)
    return tf.where(square >= TINY, 1.0 - dot / (2.0 * square), tf.ones_like(square))
