"""How gradients are made smaller on their way between processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import final

import tensorflow as tf

from dream._compression import Compression
from dream._errors import Unsupported
from dream.communication import Communicator


class Travel(ABC):
    """In a step that is compiled. All ranks come out with the same bits."""

    @abstractmethod
    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sum over the ranks of each."""


def travel(asked: Compression, communicator: Communicator) -> Travel:
    match asked.kind:
        case "float16":
            return Rounded(communicator, tf.float16)
        case "bfloat16":
            return Rounded(communicator, tf.bfloat16)
        case "topk":
            return Largest(communicator, asked.amount)
        case _:
            raise Unsupported(
                "TensorFlow's gradients travel whole or as their largest elements. Received: "
                f"compression={asked.kind!r}. Use 'float16', 'bfloat16' or 'topk[:FRACTION]'."
            )


@final
class Rounded(Travel):
    """Half the bytes, two roundings, added up in float32: each rank gets its chunk of everybody's
    gradients, rounded, adds it up, and sends the rounded sum to all.

    A wire moves int32, so two elements are one.
    """

    def __init__(self, communicator: Communicator, dtype: tf.DType) -> None:
        self._communicator, self._dtype = communicator, dtype

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        ranks = self._communicator.world_size
        flat = tf.concat([tf.cast(tf.reshape(g, [-1]), self._dtype) for g in gradients], 0)
        length = flat.shape[0]
        chunk = 2 * -(-length // (2 * ranks))
        sent = self._packed(tf.pad(flat, [[0, ranks * chunk - length]]))
        came = self._unpacked(self._communicator.all_to_all(sent))
        total = tf.reduce_sum(tf.cast(tf.reshape(came, [ranks, chunk]), tf.float32), 0)
        mine = self._packed(tf.cast(total, self._dtype))
        whole = self._unpacked(self._communicator.all_gather(mine))
        return _like(gradients, whole[:length])

    def _packed(self, halves: tf.Tensor) -> tf.Tensor:
        return tf.bitcast(tf.reshape(halves, [-1, 2]), tf.int32)

    def _unpacked(self, pairs: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.bitcast(pairs, self._dtype), [-1])


@final
class Largest(Travel):
    """Top-k with error feedback (Stich, Cordonnier, Jaggi 2018): each rank sends places and values
    of a fraction of each gradient's elements, one at least; what stays behind is added to the next
    gradient. Sent: 8 bytes for each of those, to every other rank."""

    def __init__(self, communicator: Communicator, fraction: float) -> None:
        self._communicator, self._fraction = communicator, fraction
        self._kept: dict[tuple[int, int], tf.Variable] = {}

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        starts = [0, *accumulate(_size(g) for g in gradients)]
        chosen = [self._choose(i, g) for i, g in enumerate(gradients)]
        places = tf.concat([at + p for at, (p, _) in zip(starts, chosen, strict=False)], 0)
        values = tf.concat([value for _, value in chosen], 0)
        sent = tf.concat([places, tf.bitcast(values, tf.int32)], 0)
        came = tf.reshape(self._communicator.all_gather(sent), [-1, 2, places.shape[0]])
        total = tf.zeros([starts[-1]])
        for rank in range(self._communicator.world_size):  # in order, so alike everywhere
            theirs = tf.bitcast(came[rank, 1], tf.float32)
            total = tf.tensor_scatter_nd_add(total, came[rank, 0][:, None], theirs)
        return _like(gradients, total)

    def _choose(self, index: int, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(places, values) of the largest; the rest is kept for the next step."""
        size = _size(gradient)
        kept = self._kept_of(index, size)
        whole = tf.cast(tf.reshape(gradient, [-1]), tf.float32) + kept
        count = max(1, round(self._fraction * size))
        places = tf.math.top_k(tf.abs(whole), count, sorted=False).indices
        values = tf.gather(whole, places)
        kept.assign(tf.tensor_scatter_nd_update(whole, places[:, None], tf.zeros([count])))
        return places, values

    def _kept_of(self, index: int, size: int) -> tf.Variable:
        if (index, size) not in self._kept:
            with tf.init_scope():
                self._kept[index, size] = tf.Variable(tf.zeros([size]), trainable=False)
        return self._kept[index, size]


def _size(gradient: tf.Tensor) -> int:
    size: int = gradient.shape.num_elements()
    return size


def _like(gradients: Sequence[tf.Tensor], flat: tf.Tensor) -> list[tf.Tensor]:
    parts = tf.split(flat, [_size(g) for g in gradients])
    return [
        tf.cast(tf.reshape(part, g.shape), g.dtype)
        for part, g in zip(parts, gradients, strict=True)
    ]
