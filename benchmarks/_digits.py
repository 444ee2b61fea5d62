"""The digits and the first weights of the exactness benchmark; NumPy alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dream.tools.compare import tasks

EPOCHS = 3
BATCH = 64
RATE = 0.1
MOMENTUM = 0.9

Arrays = dict[str, NDArray[np.float32]]


def samples() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All 1797 in their own order: 28 batches of 64 and one of 5."""
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y.astype(np.int64)


def first_weights() -> Arrays:
    """hidden.kernel (64, 32), hidden.bias, output.kernel (32, 10), output.bias."""
    return tasks.first_weights(tasks.find("digits-mlp"), 0)


def save(folder: str, name: str, weights: Arrays | str) -> None:
    """What a contender learned, or why it refused."""
    content = {"refusal": np.array(weights)} if isinstance(weights, str) else weights
    np.savez(Path(folder, f"{name}.npz"), **content)


def difference(file: Path, reference: Path) -> float | str:
    """The largest difference of any parameter, or why there is none."""
    if not file.exists():
        return "failed"
    with np.load(file) as ours, np.load(reference) as theirs:
        if "refusal" in ours:
            return str(ours["refusal"])
        return max(float(np.abs(ours[name] - theirs[name]).max()) for name in theirs)
