"""Where a microbatch lies in its batch: it draws what its samples draw on one device, and its
losses count for what they are of the whole batch's."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, final

import tensorflow as tf
from keras import ops

from dream.adapters.keras import losses
from dream.adapters.keras.engine import BatchShare, Engine
from dream.adapters.tensorflow.keras.draws import GraphRows, drawing


@final
class MicrobatchPlace(NamedTuple):
    """first, samples: those of the batch that it has; total: the batch's. fraction: of the mean
    over the batch that its own mean counts for."""

    first: int
    samples: int
    total: int
    fraction: float

    @classmethod
    def of(cls, rows: slice, total: int, fraction: float) -> MicrobatchPlace:
        return cls(rows.start, rows.stop - rows.start, total, fraction)

    def tensor(self) -> tf.Tensor:
        """As functions that are traced once for all microbatches take it."""
        return tf.constant(tuple(self), tf.float32)


def drawing_at(place: tf.Tensor) -> AbstractContextManager[Any]:
    """Inside, what Keras draws is drawn for the batch, of which the microbatch uses its rows."""
    first, samples, total, _ = tf.unstack(place, num=4)
    rows = GraphRows(BatchShare(samples, total), tf.cast(first, tf.int32), 1)
    return drawing(rows)


@final
class MicrobatchLosses(losses.LossPlace):
    """Scales a microbatch's losses such that, weighed by its fraction, they add up."""

    def __init__(self, engine: Engine, place: tf.Tensor) -> None:
        self.engine = engine
        self._fraction = place[3]

    def as_sum(self, value: Any) -> Any:
        return ops.divide_no_nan(value, ops.cast(self._fraction, value.dtype))

    def by_count(self, value: Any, count: Any) -> Any:
        raise AssertionError("masks and such weights are refused before")
