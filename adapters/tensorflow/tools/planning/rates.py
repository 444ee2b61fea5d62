"""What TensorFlow computes and moves a second on this machine, in this process."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import tensorflow as tf

from dream.tools.plan.calibrate import Rates

_SECONDS = 0.3
_WIDTH = 512
_LARGE = 4 << 20
_LAYERS = 20


def read(dtype: str) -> Rates:
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
    """Seconds of an operation of a compiled step, however small it is."""

    @tf.function  # type: ignore[untyped-decorator]
    def chain(x: Any) -> Any:
        for _ in range(_LAYERS):
            x = tf.linalg.matmul(x, x)
        return x

    x = tf.eye(4)
    return _seconds(lambda: chain(x)) / _LAYERS


def _seconds(call: Callable[[], Any]) -> float:
    """Of one call: the median of blocks."""
    call()
    begin = perf_counter()
    call().numpy()
    calls = max(1, int(0.02 / max(1e-7, perf_counter() - begin)))
    taken: list[float] = []
    while sum(taken) * calls < _SECONDS or len(taken) < 3:
        begin = perf_counter()
        for _ in range(calls):
            last = call()
        last.numpy()
        taken.append((perf_counter() - begin) / calls)
    return median(taken)
