"""The dtype policy of layers made in the block, as Keras names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from dream._errors import ConfigurationError

_POLICIES = {"bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


@contextmanager
def policy(precision: str) -> Iterator[None]:
    """While the block is open: weights in float32, layers computing in `precision`. The default
    leaves the user's own policy alone."""
    name = _POLICIES.get(precision)
    if name is None:
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def check_scaled(precision: str, optimizer: Any) -> None:
    """A float16 step by hand needs a loss scale; compile brings one by itself."""
    if precision == "float16" and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigurationError(
            "Gradients in float16 vanish without a loss scale. Received: "
            f"{type(optimizer).__name__} with precision='float16'. Give train_step "
            "keras.optimizers.LossScaleOptimizer(optimizer), or use compile and fit."
        )
