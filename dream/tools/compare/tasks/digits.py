"""Real digits of 8 x 8 pixels, for a small MLP and a small CNN."""

from __future__ import annotations

from dream.tools.compare.tasks.task import Data, Task, dataset

TRAIN = 1413
"""22 batches of 64 and one of 5, which neither 2, 3 nor 4 replicas can share evenly."""


def flat() -> Data:
    """x: float32 (n, 64) in [0, 1]; y: int64 (n,) in 0..9. Shuffled once, always alike."""
    import numpy as np

    found = dataset("digits")
    order = np.random.default_rng(0).permutation(len(found.target))
    x = (found.data[order] / 16).astype(np.float32)
    y = found.target[order].astype(np.int64)
    return Data(x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:])


def images() -> Data:
    """x: float32 (n, 8, 8, 1); the rest as above."""
    data = flat()
    return Data(data.x.reshape(-1, 8, 8, 1), data.y, data.x_test.reshape(-1, 8, 8, 1), data.y_test)


# With momentum, workers that do not wait need a low rate: at 0.1 stale gradients diverge.
MLP = Task(
    name="digits-mlp",
    summary="digits, MLP 64-32-10",
    score="test accuracy",
    loss="classes",
    samples=TRAIN,
    epochs=6,
    learning_rate=0.03,
    shapes={
        "hidden.kernel": (64, 32),
        "hidden.bias": (32,),
        "output.kernel": (32, 10),
        "output.bias": (10,),
    },
    load=flat,
)
CNN = Task(
    name="digits-cnn",
    summary="digits, CNN of two 3 x 3 convolutions",
    score="test accuracy",
    loss="classes",
    samples=TRAIN,
    epochs=3,
    learning_rate=0.05,
    shapes={
        "first.kernel": (3, 3, 1, 16),
        "first.bias": (16,),
        "second.kernel": (3, 3, 16, 32),
        "second.bias": (32,),
        "output.kernel": (512, 10),
        "output.bias": (10,),
    },
    load=images,
)
