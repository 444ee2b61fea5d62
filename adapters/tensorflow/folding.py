"""Micro-batches in a graph: one after the other, so that what one needs is free for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def rows(batch: Any) -> tf.Tensor:
    """How many samples a batch has: the length of its first tensor."""
    first = next(t for t in tf.nest.flatten(batch) if t is not None)
    return tf.shape(first)[0]


def ratio(some: tf.Tensor, all_of: tf.Tensor) -> tf.Tensor:
    """some / all_of as float32; 1 where there is nothing."""
    return tf.where(all_of > 0, tf.cast(some, tf.float32) / tf.cast(all_of, tf.float32), 1.0)


def fold(
    times: tf.Tensor, compute: Callable[[tf.Tensor], list[Any]], like: Sequence[Any]
) -> list[tf.Tensor]:
    """The sums of what `compute` gives for 0 to times - 1. like: tensors of their shapes."""

    def go_on(index: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return index < times

    def add(index: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = compute(index)
        return index + 1, *(s + tf.cast(f, s.dtype) for s, f in zip(sums, found, strict=True))

    start = (tf.constant(0), *(tf.zeros_like(tf.convert_to_tensor(t)) for t in like))
    _, *sums = tf.while_loop(go_on, add, start, parallel_iterations=1)
    return list(sums)
