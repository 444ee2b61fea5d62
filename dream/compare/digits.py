"""The embedded task's data and first weights: NumPy alone, so that every framework starts from
the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dream._errors import NotInstalled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = dict[str, NDArray[np.float32]]

INSTALL = "pip install 'dream-systems[examples]'"
LEARNING_RATE = 0.1
MOMENTUM = 0.9
LAYERS = {"hidden": (64, 32), "output": (32, 10)}
"""layer -> (inputs, outputs)."""
TRAIN = 1413
"""22 batches of 64 and one of 5, which neither 2, 3 nor 4 replicas can share evenly."""


@dataclass(frozen=True, slots=True)
class Digits:
    """x: float32 (n, 64) in [0, 1]; y: int64 (n,) in 0..9."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]


def load() -> Digits:
    """scikit-learn's 1797 real digits, shuffled once, always alike."""
    import numpy as np

    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"The digits come with scikit-learn, which is not installed. Run: {INSTALL}"
        ) from error
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    return Digits(x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:])


def first_weights(seed: int) -> Weights:
    """`hidden.kernel` (64, 32), `hidden.bias` (32,), `output.kernel` ..., Glorot uniform."""
    import numpy as np

    draw = np.random.default_rng(seed)
    weights: Weights = {}
    for layer, (inputs, outputs) in LAYERS.items():
        limit = (6 / (inputs + outputs)) ** 0.5
        kernel = draw.uniform(-limit, limit, (inputs, outputs))
        weights[f"{layer}.kernel"] = kernel.astype(np.float32)
        weights[f"{layer}.bias"] = np.zeros(outputs, np.float32)
    return weights
