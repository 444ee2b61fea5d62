"""What recomputation saves on TensorFlow: a chain of blocks in Keras's compiled fit.

    python benchmarks/recompute_keras.py [--width 64] [--rows 8192] [--depths 16 64 144]

TensorFlow does not say what it holds on a CPU. So each figure is of a process of its own: by how
much its resident memory rises above what it was before, at most, in one step on `rows` samples of
a model that has taken smaller ones. In tensors of the size of a block's input; Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEPTHS = (16, 64, 144)
_AUTO = {"recompute": "auto"}
WAYS: dict[str, Any] = {
    "kept": {}, "all": {"recompute": True}, "sqrt": {"recompute": "sqrt"},
    "0.5": _AUTO | {"memory_budget": 0.5}, "0.25": _AUTO | {"memory_budget": 0.25},
}  # fmt: skip
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
"""glibc: what is free is given back, and leaves no holes."""


def measured(depth: int, way: str, width: int, rows: int) -> tuple[float, float]:
    """(tensors, seconds) of one step; in a process of its own."""
    command = [sys.executable, __file__, "--one", f"{depth} {way} {width} {rows}"]
    env = os.environ | _ALLOCATOR | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    tensors, seconds = done.stdout.split()[-2:]
    return float(tensors), float(seconds)


def step(depth: int, way: str, width: int, rows: int) -> tuple[float, float]:
    """The same in this process, which does nothing else."""
    import keras
    import numpy as np
    import tensorflow as tf

    import dream

    class Block(keras.layers.Layer):  # type: ignore[misc]
        """Keeps three tensors of its input's size."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(width)

        def build(self, shape: Any) -> None:
            self.inner.build(shape)
            self.built = True

        def call(self, x: Any) -> Any:
            return x + keras.ops.tanh(keras.ops.sigmoid(self.inner(x)))

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with dream.strategy("single", framework="tensorflow", **WAYS[way]):
        model = keras.Sequential([keras.Input((width,)), *(Block() for _ in range(depth))])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    for _ in range(2):
        model.fit(x[:64], x[:64], batch_size=64, verbose=0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
    before, begin = _kib("VmRSS"), time.perf_counter()
    model.fit(x, x, batch_size=rows, verbose=0)
    seconds = time.perf_counter() - begin
    return (_kib("VmHWM") - before) * 1024 / x.nbytes, seconds


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        depth, way, width, rows = given.one.split()
        print(*step(int(depth), way, int(width), int(rows)))
        return
    print(f"{'depth':>6}" + "".join(f"{way:>8} {'time':>6}" for way in WAYS))
    for depth in given.depths:
        found = [measured(depth, way, given.width, given.rows) for way in WAYS]
        kept = found[0][1]
        print(f"{depth:>6}" + "".join(f"{n:>8.0f} {s / kept:>6.2f}" for n, s in found), flush=True)


if __name__ == "__main__":
    main()
