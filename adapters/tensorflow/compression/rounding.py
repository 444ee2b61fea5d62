"""Gradients that travel in half precision: half the bytes, two roundings, added up in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import tensorflow as tf

from dream.adapters.keras.engine import Exchange
from dream.adapters.tensorflow.compression.flat import flat, like, sizes
from dream.collectives import Wire


@final
class Rounded(Exchange):
    """Each rank gets its chunk of everybody's gradients, rounded; adds it up in float32; and sends
    the rounded mean to all. Error: two roundings of each element, however many ranks.

    A wire moves int32, so two elements are one.
    """

    def __init__(self, wire: Wire, world_size: int, dtype: tf.DType) -> None:
        self._wire, self._world_size, self._dtype = wire, world_size, dtype

    def __call__(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        ranks, length = self._world_size, sum(sizes(variables))
        chunk = 2 * -(-length // (2 * ranks))
        filled = tf.pad(flat(gradients, self._dtype), [[0, ranks * chunk - length]])
        pairs = [chunk // 2] * ranks
        came = self._unpacked(self._wire.all_to_all(self._packed(filled), pairs, pairs))
        summed = tf.reduce_sum(tf.cast(tf.reshape(came, [ranks, chunk]), tf.float32), 0)
        mean = tf.cast(summed / ranks, self._dtype)
        whole = self._unpacked(self._wire.all_gather(self._packed(mean)))
        return like(whole[:length], variables, gradients)

    def _packed(self, halves: tf.Tensor) -> tf.Tensor:
        return tf.bitcast(tf.reshape(halves, [-1, 2]), tf.int32)

    def _unpacked(self, pairs: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.bitcast(pairs, self._dtype), [-1])
