"""What dream gives to TensorFlow's collectives, counted in the step itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import tensorflow as tf

from dream.adapters.tensorflow.collectives import Collectives

_COUNTED = ("all_reduce", "all_gather", "all_to_all", "broadcast")


@final
class Counts:
    """Bytes given since `begin`, by collective: of each that ran, not of each that was traced."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._given = {
                name: tf.Variable(0, dtype=tf.int64, trainable=False) for name in _COUNTED
            }
        self._before: Mapping[str, int] = defaultdict(int)

    def begin(self) -> None:
        self._before = self._now()

    def given(self) -> dict[str, int]:
        return {
            name: now - self._before[name]
            for name, now in self._now().items()
            if now > self._before[name]
        }

    def add(self, name: str, tensors: Any) -> None:
        for tensor in tf.nest.flatten(tensors):
            self._given[name].assign_add(tf.size(tensor, tf.int64) * tensor.dtype.size)

    def _now(self) -> dict[str, int]:
        return {name: int(value) for name, value in self._given.items()}


@contextmanager
def counting() -> Iterator[Counts]:
    """What is traced inside counts whenever it runs."""
    counts = Counts()
    kept = {name: getattr(Collectives, name) for name in _COUNTED}
    for name, own in kept.items():
        setattr(Collectives, name, _counted(own, name, counts))
    try:
        yield counts
    finally:
        for name, own in kept.items():
            setattr(Collectives, name, own)


def _counted(own: Callable[..., Any], name: str, counts: Counts) -> Callable[..., Any]:
    @wraps(own)
    def call(self: Any, buffers: Any, *args: Any) -> Any:
        counts.add(name, buffers)
        return own(self, buffers, *args)

    return call
