"""What both frameworks train on: numbers, and nothing of either framework."""

from __future__ import annotations

import numpy as np

INPUTS, HIDDEN, CLASSES, WORDS = 12, 16, 5, 7
SAMPLES, BATCH, EPOCHS, SEED = 61, 20, 3, 4
"""The last batch of an epoch has one sample: other ranks have none of it."""


def numbers(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(samples, INPUTS)).astype(np.float32), draw.integers(
        0, CLASSES, samples
    )


def images() -> tuple[np.ndarray, np.ndarray]:
    """Channels last; as many as fill three batches, in even shares for two ranks."""
    draw = np.random.default_rng(1)
    return draw.normal(size=(60, 8, 7, 2)).astype(np.float32), draw.integers(0, CLASSES, 60)


def words() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(2)
    return draw.integers(0, WORDS, (SAMPLES, 6)), draw.integers(0, CLASSES, SAMPLES)


def weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Every rank's first ones, but rank 0's only count."""
    draw = np.random.default_rng(3)
    return [draw.normal(size=shape).astype(np.float32) / 4 for shape in shapes]
