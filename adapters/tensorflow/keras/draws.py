"""Rows of what is drawn for the global batch, in a step of TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import keras
import tensorflow as tf

from dream._log import warn_once
from dream.adapters.keras import hooks
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.randomness.draws import ShareRows, counted, is_written
from dream.adapters.tensorflow import private


@contextmanager
def drawing(rows: GraphRows) -> Iterator[None]:
    """Surround a step, and say once what in it draws for each part by itself."""
    with hooks.drawn_for(rows):
        yield
    found = private.stateful_draws()
    if found:
        warn_once(
            "tf.random draws in a step for each replica by itself, which is not what one device "
            f"draws. Received: {', '.join(found)} in the model's step. Use keras.random with a "
            "keras.random.SeedGenerator."
        )


@final
class SeedOnDemand:
    """What `keras.random` draws from where no seed is named, made once when it is first asked for,
    for all devices, each of whose steps is traced in a thread of its own."""

    def __init__(self, creating: Callable[[], AbstractContextManager[Any]]) -> None:
        """creating: surrounds what makes variables of all devices."""
        self._creating = creating
        self.made: Any = None

    def next(self, ordered: bool = True) -> Any:
        if self.made is None:
            with ThreadPoolExecutor(1) as thread:  # outside of the step that is traced
                self.made = thread.submit(self._make).result()
        return self.made.next(ordered)

    def _make(self) -> Any:
        with self._creating():
            return keras.random.SeedGenerator()


@final
class GraphRows(ShareRows):
    """A part's rows of the batch; all of it, where its total is 0: nobody has dealt it. In a graph
    a number of rows is a tensor, and a plain number is none: a part's shares differ in length,
    unless the graph is of one length (`drop_remainder=True`)."""

    def __init__(self, share: BatchShare, part: tf.Tensor, parts: int) -> None:
        """part: which of so many it is, where samples are dealt to them in turn."""
        total = tf.cast(share.total, tf.int32)
        known = None if share.rows is None else tf.get_static_value(share.rows)
        self._rows = None if known is None else int(known)
        self._count = tf.cast(tf.maximum(share.count, 1.0), tf.int32)
        in_turn = share.first is None
        first = part if in_turn else tf.cast(share.first, tf.int32)
        self._first = tf.where(total > 0, first, 0)
        self._step = tf.where(total > 0, parts, 1) if in_turn else 1
        self._total = tf.where(total > 0, total, self._count)
        self._stacked: list[Sequence[tf.Tensor]] = []

    def dims(self, shape: Any) -> Sequence[Any]:
        if isinstance(shape, (tuple, list, tf.TensorShape)):
            return list(shape)
        if shape.dtype.is_integer and shape.shape.rank == 1:
            return _static_where_known(shape)
        return _static_where_known(tf.shape(shape))

    def counts(self, dims: Sequence[Any]) -> bool:
        counted()
        if tf.is_tensor(length := dims[0]):
            return True
        rows = int(self._count) if tf.executing_eagerly() else self._rows
        if not rows or not length or length % rows:
            return False
        return not is_written(dims, rows)

    def stacked(self, pieces: Sequence[Any], axis: Any) -> None:
        if axis == 0 and tf.executing_eagerly():  # the graph tells else
            self._stacked.append(list(pieces))

    def whole(self, length: Any) -> tf.Tensor:
        length = tf.cast(length, tf.int32)
        many = length // self._count * self._total
        return tf.where(self._fits(length), many, length)

    def take(self, tensor: Any, length: Any) -> Any:
        return tf.gather(tensor, self._places(length), axis=0)

    def spread(self, tensor: Any, length: Any) -> Any:
        whole = self.whole(length)
        shape = tf.concat([[whole], tf.shape(tensor)[1:]], 0)
        ones = tf.ones(shape, tensor.dtype)
        return tf.tensor_scatter_nd_update(ones, self._places(length)[:, None], tensor)

    def dropout(self, own: Callable[..., Any], inputs: Any, rate: Any, dims: Any, seed: Any) -> Any:
        asked = tf.unstack(tf.shape(inputs)) if dims is None else dims
        whole = tf.ones(tf.stack([self.whole(asked[0]), *asked[1:]]), inputs.dtype)
        mask = self.take(own(whole, rate, None, seed), asked[0])
        return tf.where(mask > 0, inputs * mask, tf.zeros([], inputs.dtype))

    def _fits(self, length: tf.Tensor) -> tf.Tensor:
        return tf.equal(length % self._count, 0)

    def _places(self, length: Any) -> tf.Tensor:
        """Return where the part's rows, so many, lie in the global batch."""
        length = tf.cast(length, tf.int32)
        each = length // self._count
        own = tf.range(length)
        there = self._behind(own, [each])
        for pieces in (*private.stacked(), *self._stacked):
            lengths = [tf.shape(piece)[0] for piece in pieces]
            fits = [self._fits(each) for each in lengths]
            many = self._behind(own, [each // self._count for each in lengths])
            there = tf.where(tf.reduce_all([tf.add_n(lengths) == length, *fits]), many, there)
        return tf.where(self._fits(length), there, own)

    def _behind(self, own: tf.Tensor, each: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return where rows lie in the global batch, of pieces that lie one behind the other.
        each: how many rows a piece has for each sample."""
        there, here, before = own, tf.constant(0), tf.constant(0)
        for many in each:
            inner, rows = own - here, tf.maximum(many, 1)
            sample = tf.minimum(self._first + inner // rows * self._step, self._total - 1)
            there = tf.where(inner >= 0, before + sample * many + inner % rows, there)
            here, before = here + many * self._count, before + many * self._total
        return there


def _static_where_known(shape: tf.Tensor) -> list[Any]:
    known = tf.get_static_value(shape, partial=True)
    sizes = [None] * shape.shape[0] if known is None else list(known)
    return [shape[i] if size is None else int(size) for i, size in enumerate(sizes)]
