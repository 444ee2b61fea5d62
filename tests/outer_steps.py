"""DiLoCo by hand, in one process: two replicas of a linear model with two tensors, each with every
other row of a batch, inner SGD with momentum, outer SGD with Nesterov's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE, MOMENTUM, EPOCHS, BATCH, RANKS = 0.05, 0.9, 2, 8, 2
SHAPES = ((3, 2), (2,))
Array = NDArray[Any]


def data() -> tuple[Array, Array]:
    """Five batches an epoch."""
    numbers = np.random.default_rng(3)
    return numbers.normal(size=(40, 3)).astype("float32"), numbers.normal(size=(40, 2)).astype(
        "float32"
    )


def begin() -> list[Array]:
    return [np.full(shape, 0.1, "float32") for shape in SHAPES]


def by_hand(every: int, rate: float, momentum: float, fragments: int) -> list[Array]:
    """At the end of an epoch all fragments come together that are apart."""
    x, y = data()
    anchors, outer = begin(), [np.zeros(shape, "float32") for shape in SHAPES]
    replicas = [begin() for _ in range(RANKS)]
    inner = [[np.zeros(shape, "float32") for shape in SHAPES] for _ in range(RANKS)]
    steps, gap = 0, every // fragments
    parts = [[0, 1]] if fragments == 1 else [[0], [1]]
    apart: set[int] = set()

    def together(due: list[int]) -> None:
        for place in (place for index in due for place in parts[index]):
            gone = anchors[place] - np.mean([own[place] for own in replicas], axis=0)
            outer[place] = momentum * outer[place] + gone
            anchors[place] = anchors[place] - rate * (gone + momentum * outer[place])
            for own in replicas:
                own[place] = anchors[place].copy()
        apart.difference_update(due)

    for _ in range(EPOCHS):
        for first in range(0, len(x), BATCH):
            steps += 1
            for rank, (own, velocity) in enumerate(zip(replicas, inner, strict=True)):
                rows = slice(first + rank, first + BATCH, RANKS)
                error = 2 * (x[rows] @ own[0] + own[1] - y[rows]) / y[rows].size
                for place, gradient in enumerate((x[rows].T @ error, error.sum(0))):
                    velocity[place] = MOMENTUM * velocity[place] + gradient
                    own[place] = own[place] - RATE * velocity[place]
            apart.update(range(len(parts)))
            together([i for i in range(len(parts)) if (steps - i * gap) % every == 0])
        together(sorted(apart))
    return anchors
