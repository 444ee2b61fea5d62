"""A forward and a backward pass of a Keras model on TensorFlow, as `dream port-check` asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Array = NDArray[Any]


def differentiate(
    call: Callable[[], Sequence[Any]],
    variables: Sequence[Any],
    slopes: Callable[[Sequence[Array]], Sequence[Array]],
) -> list[Array | None]:
    """The gradient by each keras.Variable, None where none flows.

    call: gives the outputs; slopes: from these the gradient of a loss by each, of the same shapes.
    """
    sources = [variable.value for variable in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = [tf.convert_to_tensor(x) for x in call()]
    found = slopes([_array(x) for x in outputs])
    flowing = [(x, tf.cast(s, x.dtype)) for x, s in zip(outputs, found, strict=True)
               if x.dtype.is_floating]  # fmt: skip
    gradients = tape.gradient([x for x, _ in flowing], sources, [s for _, s in flowing])
    return [None if g is None else _array(tf.convert_to_tensor(g)) for g in gradients]


def _array(x: Any) -> Array:
    return np.array(tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x)
