"""What a task is, and how its weights are drawn: the same numbers in every framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dream._errors import NotInstalled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = dict[str, NDArray[np.float32]]
else:
    Weights = dict

INSTALL = "pip install 'dream-systems[examples]'"
MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Data:
    """x, y: samples to train on; x_test, y_test: to test on. Samples come first in every array."""

    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One of the embedded tasks.

    summary: for people; score: what is read on the test set.
    loss: cross-entropy over classes, or the mean of squares.
    samples: to train on; epochs: how long it trains where nothing else was asked for.
    shapes: parameter -> its shape, kernels as (inputs, outputs) or (height, width, in, out).
    """

    name: str
    summary: str
    score: str
    loss: Literal["classes", "squares"]
    samples: int
    epochs: int
    learning_rate: float
    shapes: Mapping[str, tuple[int, ...]]
    load: Callable[[], Data]


def first_weights(task: Task, seed: int) -> Weights:
    """Every parameter: kernels Glorot uniform, biases 0, scales 1, tables uniform and small."""
    import numpy as np

    draw = np.random.default_rng(seed)

    def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        kind = name.rpartition(".")[2]
        if kind in ("bias", "scale"):
            return np.full(shape, float(kind == "scale"), np.float32)
        limit = 0.1 if kind == "table" else _glorot(shape)
        return draw.uniform(-limit, limit, shape).astype(np.float32)

    return {name: weight(name, shape) for name, shape in task.shapes.items()}


def _glorot(shape: tuple[int, ...]) -> float:
    *window, inputs, outputs = shape
    field = 1
    for side in window:
        field *= side
    return float((6 / (field * (inputs + outputs))) ** 0.5)


def dataset(name: str) -> Any:
    """One of scikit-learn's data sets that ship with it: `load_<name>`'s result."""
    try:
        import sklearn.datasets as sets
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"The embedded tasks' data come with scikit-learn, which is not installed. "
            f"Run: {INSTALL}"
        ) from error
    return getattr(sets, f"load_{name}")()
