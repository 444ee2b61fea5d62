"""What ranks do whose gradients travel otherwise than as they are, the same in either framework."""

from __future__ import annotations

from typing import Any

import numpy as np

import dream

SHAPE = (12, 10)
STEPS = 3
OPTIONS = [
    {"op": "adasum"}, {"compression": "float16"}, {"compression": "bfloat16"},
    {"compression": "topk:0.1"},
]  # fmt: skip


def moved(framework: str, reduction: str) -> list[np.ndarray]:
    """What STEPS steps of rate 1 make of one matrix of zeros, by each of the options. The gradient
    is x't / n, whatever the weights are."""
    act = {"torch": _torch, "tensorflow": _tensorflow}[framework]
    found = []
    for options in OPTIONS:
        block = dream.strategy("mirrored", framework=framework, reduction=reduction, **options)  # type: ignore[arg-type]
        with block as strategy:
            found.append(act(strategy))
    return found


def _batch(strategy: Any, step: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng([strategy.topology.rank, step])
    rows = [draw.normal(size=(8, size)).astype(np.float32) for size in SHAPE]
    return rows[0], rows[1]


def _torch(strategy: Any) -> np.ndarray:
    import torch

    model = torch.nn.Linear(*SHAPE, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = strategy.train_step(model, lambda p, t: (p * t).mean(), optimizer)
    for index in range(STEPS):
        float(step(*map(torch.from_numpy, _batch(strategy, index))))
    return model.weight.detach().numpy().T.copy()


def _tensorflow(strategy: Any) -> np.ndarray:
    import keras
    import tensorflow as tf

    model = keras.Sequential(
        [
            keras.Input(SHAPE[:1]),
            keras.layers.Dense(SHAPE[1], use_bias=False, kernel_initializer="zeros"),
        ]
    )
    step = strategy.train_step(model, lambda p, t: tf.reduce_mean(p * t), keras.optimizers.SGD(1.0))
    for index in range(STEPS):
        float(step(*map(tf.constant, _batch(strategy, index))))
    return np.array(model.get_weights()[0])
