"""Change TensorFlow itself while a block is open; nothing else assigns to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import tensorflow as tf

from dream.adapters.tensorflow import private


@contextmanager
def loops_over_devices() -> Iterator[None]:
    """Inside, a `GradientTape` outside a replica gives gradients of variables that each device has
    a copy of: those of the copy that is read there."""
    own = tf.GradientTape.gradient

    @wraps(own)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.in_cross_replica_context():
            sources = tf.nest.map_structure(private.read_copy, sources)
        return own(self, target, sources, *args, **kwargs)

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = own
