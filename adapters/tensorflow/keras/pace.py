"""Shares that change while a step stands as it was traced: the time of a rank's own work in it, and
its run of a batch that comes whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import tensorflow as tf

from dream.adapters.keras.data.share import PLACES, SHARE, WHOLE, BatchShare
from dream.adapters.keras.update.pace import StepClock
from dream.adapters.tensorflow.keras.data import gathered, rows_of, run, samples_of
from dream.data.partition import Division


@final
class GraphClock(StepClock):
    """Reads the time as operations of the step: after its batch and before all else, and once what
    is to be added up is computed."""

    def __init__(self) -> None:
        self._sums = tf.Variable(tf.zeros([2], tf.float64), trainable=False, name="dream_taken")
        self._began: tuple[tf.Tensor, tf.Tensor] | None = None

    def begun(self, samples: Any, batch: Any) -> Any:
        with tf.control_dependencies(_tensors(batch)):
            now = tf.timestamp()
        self._began = tf.cast(samples, tf.float64), now
        with tf.control_dependencies([now]):
            return tf.nest.map_structure(lambda x: tf.identity(x) if tf.is_tensor(x) else x, batch)

    def forget(self) -> None:
        self._began = None

    def stop(self, tensors: Sequence[Any]) -> None:
        if self._began is None:
            return
        samples, began = self._began
        self._began = None
        with tf.control_dependencies(_tensors(list(tensors))):
            self._sums.assign_add([samples, tf.timestamp() - began])

    def taken(self) -> tuple[int, float]:
        samples, seconds = self._sums.numpy()
        self._sums.assign(tf.zeros([2], tf.float64))
        return int(samples), float(seconds)


@final
class OwnRuns:
    """Takes this rank's run of a batch in the step: who reads batches ahead of it does not know how
    they will be divided."""

    def __init__(self, rank: int, division: Division) -> None:
        self._rank = rank
        self._edges = tf.Variable(division.edges, dtype=tf.int64, trainable=False)

    def divide(self, division: Division) -> None:
        """Divide the batches of later steps so."""
        self._edges.assign(division.edges)

    def of(self, element: Any) -> tuple[Any, BatchShare]:
        """Return the run, and what share it is. One without samples is shown one that weighs
        nothing."""
        whole, places = element[WHOLE], element.get(PLACES)
        total = samples_of(rows_of(whole if places is None else places))
        own, count, begin = run(self._edges, total, self._rank)

        def taken(x: Any) -> Any:
            each, rest = tf.shape(x)[0] // total, tf.shape(x)[0] % total
            by_itself = run(self._edges, tf.shape(x)[0], self._rank)[0]
            first = tf.where(rest > 0, by_itself.start, own.start * each)
            return x[first : tf.where(rest > 0, by_itself.stop, own.stop * each)]

        if places is not None:
            batch = gathered(places[own], whole)
        else:
            batch = tf.nest.map_structure(taken, whole)
        count, total, first = (tf.cast(number, tf.float32) for number in (count, total, begin))
        return batch, BatchShare(count, total, element[SHARE], first)


def _tensors(structure: Any) -> list[Any]:
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [each for each in flat if tf.is_tensor(each)]
