"""Measure what TensorFlow computes and moves a second on this machine, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dream.tools.plan.readings import Rates, median_seconds

_WIDTH = 512
_LARGE = 4 << 20
_LAYERS = 20


def measure_rates(dtype: str) -> Rates:
    """dtype: as TensorFlow spells it."""
    a = tf.cast(tf.random.normal((_WIDTH, _WIDTH)), dtype)
    image = tf.cast(tf.random.normal((8, 32, 32, 32)), dtype)
    kernel = tf.cast(tf.random.normal((3, 3, 32, 64)), dtype)
    x = tf.random.normal((_LARGE,))
    product = _seconds(lambda: tf.matmul(a, a))
    convolved = _seconds(lambda: tf.nn.conv2d(image, kernel, 1, "SAME"))
    added = _seconds(lambda: x + x)
    return Rates(
        matmul=2 * _WIDTH**3 / product,
        convolution=2 * 8 * 64 * 32 * 9 * 32 * 32 / convolved,
        bandwidth=3 * 4 * _LARGE / added,
        launch=_launch(),
    )


def _launch() -> float:
    """Return the seconds of an operation of a compiled step, however small it is."""

    @tf.function  # type: ignore[untyped-decorator]
    def chain(x: Any) -> Any:
        for _ in range(_LAYERS):
            x = tf.linalg.matmul(x, x)
        return x

    x = tf.eye(4)
    return _seconds(lambda: chain(x)) / _LAYERS


def _seconds(call: Callable[[], Any]) -> float:
    return median_seconds(call, lambda given: given.numpy())
