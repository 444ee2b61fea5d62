"""Change TensorFlow itself while a block is open; nothing else assigns to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import tensorflow as tf

from dream._errors import ConfigurationError
from dream.adapters.tensorflow import private


@contextmanager
def loops_refused(replicas: int) -> Iterator[None]:
    """Inside, `GradientTape.gradient` of replicated variables outside a replica says what to do;
    TensorFlow only says that a handle is not available."""
    own = tf.GradientTape.gradient

    @wraps(own)
    def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return own(self, *args, **kwargs)
        except ValueError as error:
            if not private.is_unreadable_handle(error):
                raise
            raise ConfigurationError(
                "A loop around a GradientTape runs once, and here are several replicas. Received: "
                f"gradient() outside a replica, replicas={replicas}. Take the step by "
                "strategy.train_step(model, loss, optimizer), or use model.fit."
            ) from error

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = own
