"""How gradients become one on their way between ranks, where that is not their plain mean."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, final

import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras.update.exchange import PartsExchange
from dream.collectives import Wire
from dream.update.compression import TINY, Compression, check_ranks
from dream.update.update import UpdateOptions


def check(update_options: UpdateOptions, devices: int) -> None:
    """Refuse what is for torch alone, and what several devices of one process have no use for."""
    asked = update_options.compressed
    if asked is not None and asked.kind == "powersgd":
        raise Unsupported(
            "TensorFlow's gradients travel rounded, or as their largest elements. Received: "
            f"compression={update_options.compression!r} for tensorflow. Use 'float16', "
            "'bfloat16' or 'topk[:FRACTION]'; powersgd works in torch."
        )
    if devices > 1 and (asked is not None or update_options.op == "adasum"):
        raise Unsupported(
            "The devices of one process add up in one memory, where TensorFlow takes the mean of "
            f"whole gradients. Received: compression={update_options.compression!r}, "
            f"op={update_options.op!r}, devices={devices} in one process. Start `dream "
            f"run -n {devices}` with a device each, or remove the option."
        )


def exchange_of(update_options: UpdateOptions, wire: Wire, world_size: int) -> PartsExchange | None:
    """None for the plain mean. update_options: checked."""
    if update_options.op == "adasum":
        return Adasum(wire, world_size)
    asked = update_options.compressed
    if asked is None:
        return None
    if asked.kind == "topk":
        return TopK(wire, world_size, asked)
    return HalfPrecision(wire, world_size, tf.as_dtype(asked.kind))


@final
class Adasum(PartsExchange):
    """Adds gradients up as `dream.update.compression` says. Every rank gets all gradients, and
    reckons what pairs of them find, and pairs of pairs: sends and receives would not run in a
    graph. Sent: the gradient, to every other rank."""

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


@final
class TopK(PartsExchange):
    """Top-k with error feedback (Stich, Cordonnier, Jaggi 2018): what stays behind is added to the
    next gradient.

    Each rank sends places and values of a fraction of each variable's elements, one at least,
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


@final
class HalfPrecision(PartsExchange):
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
