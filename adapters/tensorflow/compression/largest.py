"""Top-k with error feedback (Stich, Cordonnier, Jaggi 2018): only a gradient's largest elements
travel; what stays behind is added to the next one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, final

import tensorflow as tf

from dream.adapters.keras.engine import Exchange
from dream.adapters.tensorflow.compression.flat import like, sizes
from dream.collectives import Wire
from dream.update.compression import Compression


@final
class Largest(Exchange):
    """Each rank sends places and values of a fraction of each variable's elements, one at least,
    and all add up all. Sent: 8 bytes for each of those, to every other rank."""

    def __init__(self, wire: Wire, world_size: int, asked: Compression) -> None:
        self._wire, self._world_size, self._asked = wire, world_size, asked
        self._kept: dict[int, tf.Variable] = {}

    def __call__(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        starts = [0, *accumulate(sizes(variables))]
        chosen = [self._choose(v, g) for v, g in zip(variables, gradients, strict=True)]
        places = tf.concat([at + p for at, (p, _) in zip(starts, chosen, strict=False)], 0)
        values = tf.concat([value for _, value in chosen], 0)
        sent = tf.concat([places, tf.bitcast(values, tf.int32)], 0)
        came = tf.reshape(self._wire.all_gather(sent), [self._world_size, 2, places.shape[0]])
        total = tf.zeros([starts[-1]])
        for rank in range(self._world_size):  # one after the other, so alike everywhere
            theirs = tf.bitcast(came[rank, 1], tf.float32)
            total = tf.tensor_scatter_nd_add(total, came[rank, 0][:, None], theirs)
        return like(total / self._world_size, variables, gradients)

    def _choose(self, variable: Any, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(places, values) of the largest; the rest is kept for the next step."""
        kept = self._kept_of(variable)
        whole = tf.cast(tf.reshape(gradient, [-1]), tf.float32) + kept
        count = self._asked.elements(prod(variable.shape))
        places = tf.math.top_k(tf.abs(whole), count, sorted=False).indices
        values = tf.gather(whole, places)
        kept.assign(tf.tensor_scatter_nd_update(whole, places[:, None], tf.zeros([count])))
        return places, values

    def _kept_of(self, variable: Any) -> tf.Variable:
        """As long as the variable lives."""
        key = id(variable)
        if key not in self._kept:
            with tf.init_scope():
                self._kept[key] = tf.Variable(tf.zeros([prod(variable.shape)]), trainable=False)
            weakref.finalize(variable, self._kept.pop, key)
        return self._kept[key]
