"""The dtype policy of layers made in the block, as Keras names it.

Under a mixed policy a layer's variables are float32 and it computes with roundings of them: they
are the master weights, and no second copy is. So O1 and O2, which differ in where the master
weights are, are one policy here. BatchNorm's variables and sums are float32 in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from dream._errors import ConfigurationError
from dream.update.precision import PRECISIONS

_POLICIES = {
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
    "O0": "float32",
    "O1": "mixed_float16",
    "O2": "mixed_float16",
    "O3": "float16",
}


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
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if PRECISIONS[precision].scales and not scaled:
        raise ConfigurationError(
            "Gradients in float16 vanish without a loss scale. Received: "
            f"{type(optimizer).__name__} with precision={precision!r}. Give train_step "
            "keras.optimizers.LossScaleOptimizer(optimizer), or use compile and fit."
        )
