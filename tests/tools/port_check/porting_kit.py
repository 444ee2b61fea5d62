"""What the tests of ports share: batches, and where the models are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dream.tools.model_process import ModelProcess
from dream.tools.port_check.verdict import PortReport

HERE = Path(__file__).parent
DRAW = np.random.default_rng(3)


def normal(*shape: int) -> dict[str, np.ndarray]:
    return {"x": DRAW.standard_normal(shape).astype(np.float32)}


BATCHES: dict[str, dict[str, np.ndarray]] = {
    "dense": normal(5, 6),
    "square": normal(5, 6),
    "conv1d": normal(5, 9, 3),
    "conv2d": normal(3, 11, 11, 3),
    "conv2d_same_stride": normal(3, 8, 8, 3),
    "conv_groups": normal(2, 9, 9, 4),
    "separable": normal(2, 9, 9, 3),
    "conv3d": normal(2, 4, 5, 6, 2),
    "generator": normal(4, 5),
    "batch_norm": normal(3, 8, 8, 3),
    "norms": normal(5, 6),
    "embedding": {"x": DRAW.integers(0, 11, (5, 4))},
    "attention": normal(3, 7, 8),
    "encoder": normal(3, 7, 8),
    "lstm": normal(4, 6, 5),
    "gru": normal(4, 6, 5),
    "bidirectional": normal(4, 6, 5),
    "time_first": normal(4, 6, 5),
    "tokens": {"tokens": DRAW.integers(0, 11, (5, 4)), "weights": normal(5, 4)["x"]},
    "inputs": {"x0": normal(4, 3)["x"], "x1": normal(4, 5)["x"]},
    "image": normal(2, 8, 8, 3),
    "conv1d_norm": normal(5, 9, 3),
    "gray": normal(3, 5, 6),
    "blocks": normal(3, 9, 3),
    "flat_image": normal(2, 4, 5, 3),
    "flat_as_keras": normal(2, 4, 5, 3),
    "packed": {"x": np.array([[3, 5, 0, 0], [1, 2, 4, 9], [7, 0, 0, 0]])},
    "cropped": normal(2, 5, 6, 3),
    "tied": {"x": DRAW.integers(0, 11, (5, 4))},
    "heads": normal(5, 6),
    "steps": normal(3, 4, 6),
}

Benches = Callable[[str], ModelProcess]
Checked = Callable[..., PortReport]


def place(name: str) -> str:
    """ "torch:dense" -> where it is."""
    framework, _, function = name.partition(":")
    return f"{HERE / f'port_{framework}.py'}:{function}"
