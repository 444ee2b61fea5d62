"""Gradients of lookups, `tf.IndexedSlices`, over the parts: all rows, in the parts' order.

Keras's optimizers square, clip and measure such a gradient row by row, so that an entry of a table
that a batch looks up twice counts as two rows: with its dense sum Adam would train another model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from dream._log import warn_once
from dream.adapters.keras import private

_ADDED = (
    "the gradient of an embedding is added up by entry before %s steps: Keras alone squares or "
    "clips it look-up by look-up, so where a batch looks an entry up twice this trains another "
    "model. Use fit under 'mirrored' without accumulate= and compression=, or SGD without clipping"
)


def dense(gradients: Sequence[Any], optimizer: Any) -> list[Any]:
    """Return gradients as whole tensors, None where there is none; say so if the optimizer would
    have trained by their rows."""
    if any(map(is_slices, gradients)):
        tell(optimizer)
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


def tell(optimizer: Any) -> None:
    """Say of an optimizer if it would have trained by the rows that are added up."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if _by_rows(inner):
        warn_once(_ADDED % type(inner).__name__)


def tell_of(model: Any, optimizer: Any) -> None:
    """Do the same where gradients are whole tensors before the optimizer sees them."""
    if any(isinstance(layer, keras.layers.Embedding) for layer in private.layers_of(model)):
        tell(optimizer)


def _by_rows(optimizer: Any) -> bool:
    clips = (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm)
    return type(optimizer) is not keras.optimizers.SGD or any(c is not None for c in clips)


def mapped(act: Callable[[list[Any]], list[Any]], gradients: Sequence[Any]) -> list[Any]:
    """Return gradients whose values `act` gives, of slices with the same indices."""
    values = [g.values if is_slices(g) else tf.convert_to_tensor(g) for g in gradients]
    return [
        tf.IndexedSlices(v, g.indices, g.dense_shape) if is_slices(g) else v
        for g, v in zip(gradients, act(values), strict=True)
    ]


def times(x: Any, weight: Any) -> Any:
    """Return x * weight; exactly 0 where the weight is 0, whatever x is."""
    if is_slices(x):
        return tf.IndexedSlices(times(x.values, weight), x.indices, x.dense_shape)
    dense = tf.convert_to_tensor(x)
    return tf.math.multiply_no_nan(dense, tf.cast(weight, dense.dtype))


def total(
    tensors: Sequence[Any], add: Callable[[list[Any]], list[Any]], part: Any, parts: int
) -> list[Any]:
    """Return sums over the parts; of slices the rows of all. add: adds dense tensors up over the
    parts. part: which this one is."""
    slices = [t for t in tensors if is_slices(t)]
    if not slices:
        return add([tf.convert_to_tensor(t) for t in tensors])
    rows = tf.stack([tf.shape(s.indices)[0] for s in slices])
    (counts,) = add([tf.one_hot(part, parts, dtype=tf.int32)[:, None] * rows])
    before, whole = tf.cumsum(counts, exclusive=True)[part], tf.reduce_sum(counts, axis=0)
    after = whole - before - rows
    gaps = iter([tf.stack([before[i], after[i]]) for i in range(len(slices))])
    sent: list[Any] = []
    for t in tensors:
        sent += _apart(t, next(gaps)) if is_slices(t) else [tf.convert_to_tensor(t)]
    sums = iter(add(sent))
    return [
        tf.IndexedSlices(next(sums), next(sums), t.dense_shape) if is_slices(t) else next(sums)
        for t in tensors
    ]


def is_slices(x: Any) -> bool:
    return isinstance(x, tf.IndexedSlices)


def _apart(slices: Any, gap: Any) -> list[Any]:
    """Return values and indices with zeros where the other parts' rows go. gap: how many before
    and after."""
    return [
        tf.pad(x, tf.concat([gap[None], tf.zeros([tf.rank(x) - 1, 2], gap.dtype)], axis=0))
        for x in (slices.values, slices.indices)
    ]
