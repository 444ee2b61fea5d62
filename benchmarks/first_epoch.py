"""What Keras's `fit` costs on TensorFlow in its first epoch and later, in processor time: KIND.

    for kind in plain single raw dream; do python benchmarks/first_epoch.py $kind; done

Kinds: plain Keras; dream's `single`; on two logical CPUs of one process raw MirroredStrategy, and
dream's `mirrored`. A process each, one thread an operation, the MLP of 64 steps an epoch. Functions
that TensorFlow traces are counted: a figure that hangs on no clock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

for _name, _value in {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}.items():
    os.environ.setdefault(_name, _value)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from _keras_trainer import BATCH, compiled, dreamt, mlp, raw  # noqa: E402
from tensorflow.python.framework import func_graph  # noqa: E402  (no public name tells of a trace)

STEPS, LATER = 64, 3


def single(layers: Callable[[], list[Any]]) -> Any:
    import dream

    with dream.strategy("single", framework="tensorflow"):
        return compiled(layers)


KINDS = {"plain": compiled, "single": single, "raw": raw, "dream": dreamt}


def main(kind: str) -> None:
    traced = [0]
    own = func_graph.func_graph_from_py_func

    def counted(*args: Any, **kwargs: Any) -> Any:
        traced[0] += 1
        return own(*args, **kwargs)

    func_graph.func_graph_from_py_func = counted
    tf.config.threading.set_intra_op_parallelism_threads(1)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((STEPS * BATCH, 784), dtype=np.float32)
    y = draw.integers(0, 10, STEPS * BATCH)
    model = KINDS[kind](mlp)
    told = []
    for epochs in (1, 1, LATER):
        begin = process_time()
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False)
        told.append((process_time() - begin) / epochs)
    first, second, later = told
    print(f"{kind}: first fit {first:.2f} s, second {second:.2f} s, an epoch of the third "
          f"{later:.2f} s, {traced[0]} functions traced")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
