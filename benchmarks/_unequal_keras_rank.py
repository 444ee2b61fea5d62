"""A rank of `unequal.py` that trains by Keras's `fit`: OUT OPTIONS SLOWER STEPS."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import keras
import numpy as np

import dream

WIDTH, BATCH = 256, 128


class Repeated(keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Computes a block so many times, of which one counts: its numbers are those of once."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.wide, self.out = keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(WIDTH)
        self.times = times

    def call(self, x: Any) -> Any:
        first = self.out(self.wide(x))
        for number in range(1, self.times):
            again = keras.ops.add(x, 1e-6 * number)  # else a graph computes them all as one
            first = first + 0.0 * self.out(self.wide(again))
        return first


class SecondHalf(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Times the second half of an epoch."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.seconds = steps, 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == self.steps // 2:
            self.began = perf_counter()

    def on_train_end(self, logs: Any = None) -> None:
        self.seconds = (perf_counter() - self.began) / (self.steps - self.steps // 2)


def main() -> None:
    out, options, slower, steps = sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:])
    keras.utils.set_random_seed(0)
    x = np.random.randn(BATCH * steps, WIDTH).astype("float32")
    with dream.strategy("mirrored", **options) as strategy:
        rank = strategy.topology.rank
        blocks = [Repeated(slower if rank else 1) for _ in range(4)]
        model = keras.Sequential([keras.Input((WIDTH,)), *blocks])
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        timed = SecondHalf(steps)
        model.fit(x, np.zeros_like(x), BATCH, verbose=0, callbacks=[timed])
    if rank == 0:
        Path(out).write_text(str(timed.seconds))


main()
