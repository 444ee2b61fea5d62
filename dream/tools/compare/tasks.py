"""The embedded tasks: real data that ships with scikit-learn, and the weights that every framework
starts from. NumPy alone; what trains on them is each adapter's own (adapters/*/tools/tasks.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from dream._errors import NotInstalled, unknown

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
    """A task's samples.

    x, y: samples to train on; x_test, y_test: to test on. Samples come first in every array.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


@dataclass(frozen=True, slots=True)
class EmbeddedTask:
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


def first_weights(task: EmbeddedTask, seed: int) -> Weights:
    """Draw every parameter: kernels Glorot uniform, biases 0, scales 1, tables uniform and
    small."""
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


_DIGITS_TRAIN = 1413
"""22 batches of 64 and one of 5, which neither 2, 3 nor 4 replicas can share evenly."""


def flat_digits() -> Data:
    """x: float32 (n, 64) in [0, 1]; y: int64 (n,) in 0..9. Shuffled once, always alike."""
    import numpy as np

    found = dataset("digits")
    order = np.random.default_rng(0).permutation(len(found.target))
    x = (found.data[order] / 16).astype(np.float32)
    y = found.target[order].astype(np.int64)
    return Data(x[:_DIGITS_TRAIN], y[:_DIGITS_TRAIN], x[_DIGITS_TRAIN:], y[_DIGITS_TRAIN:])


def image_digits() -> Data:
    """x: float32 (n, 8, 8, 1); the rest as above."""
    data = flat_digits()
    return Data(data.x.reshape(-1, 8, 8, 1), data.y, data.x_test.reshape(-1, 8, 8, 1), data.y_test)


# With momentum, workers that do not wait need a low rate: at 0.1 stale gradients diverge.
MLP = EmbeddedTask(
    name="digits-mlp",
    summary="digits, MLP 64-32-10",
    score="test accuracy",
    loss="classes",
    samples=_DIGITS_TRAIN,
    epochs=6,
    learning_rate=0.03,
    shapes={
        "hidden.kernel": (64, 32),
        "hidden.bias": (32,),
        "output.kernel": (32, 10),
        "output.bias": (10,),
    },
    load=flat_digits,
)

CNN = EmbeddedTask(
    name="digits-cnn",
    summary="digits, CNN of two 3 x 3 convolutions",
    score="test accuracy",
    loss="classes",
    samples=_DIGITS_TRAIN,
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
    load=image_digits,
)

_TABLE_TRAIN = 353
"""5 batches of 64 and one of 33."""


def load_table() -> Data:
    """x: float32 (n, 10); y: float32 (n, 1). Both of mean 0 and variance 1 over all people."""
    import numpy as np

    found = dataset("diabetes")
    order = np.random.default_rng(0).permutation(len(found.target))
    x, y = (_standard(each[order]) for each in (found.data, found.target[:, None]))
    return Data(x[:_TABLE_TRAIN], y[:_TABLE_TRAIN], x[_TABLE_TRAIN:], y[_TABLE_TRAIN:])


def _standard(values: NDArray[Any]) -> NDArray[np.float32]:
    import numpy as np

    standard: NDArray[np.float32] = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    return standard


REGRESSION = EmbeddedTask(
    name="regression",
    summary="a table of 442 people, MLP 10-32-1, squared error",
    score="test R2",
    loss="squares",
    samples=_TABLE_TRAIN,
    epochs=8,
    learning_rate=0.01,
    shapes={
        "hidden.kernel": (10, 32),
        "hidden.bias": (32,),
        "output.kernel": (32, 1),
        "output.bias": (1,),
    },
    load=load_table,
)

LETTERS = " .abcdefghijklmnopqrstuvwxyz"
TEXT_WIDTH, TEXT_INNER, TEXT_LENGTH = 32, 64, 16
"""Of a character's vector, of the feed-forward layer, and of a sample in characters."""
TEXT_HEADS = 2
_TEXT_TRAIN = 1029
"""16 batches of 64 and one of 5."""
_TEXT_TEST = 256
_SOURCES = ("iris", "wine", "breast_cancer", "diabetes", "linnerud", "digits")


def load_text() -> Data:
    """x: int32 (n, 16), characters by number; y: int64 (n, 16), the one after each."""
    import numpy as np

    prose = "".join(dataset(name).DESCR for name in _SOURCES)
    letters = re.sub("[^a-z.]+", " ", prose.lower())
    numbers = np.array([LETTERS.index(letter) for letter in letters], np.int64)
    starts = np.linspace(0, len(numbers) - TEXT_LENGTH - 1, _TEXT_TRAIN + _TEXT_TEST).astype(
        np.int64
    )
    windows = numbers[starts[:, None] + np.arange(TEXT_LENGTH + 1)]
    windows = windows[np.random.default_rng(0).permutation(len(windows))]
    x, y = windows[:, :-1].astype(np.int32), windows[:, 1:].copy()
    return Data(x[:_TEXT_TRAIN], y[:_TEXT_TRAIN], x[_TEXT_TRAIN:], y[_TEXT_TRAIN:])


def _transformer_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "letters.table": (len(LETTERS), TEXT_WIDTH),
        "places.table": (TEXT_LENGTH, TEXT_WIDTH),
    }
    for layer, (inputs, outputs) in {
        "query": (TEXT_WIDTH, TEXT_WIDTH),
        "key": (TEXT_WIDTH, TEXT_WIDTH),
        "value": (TEXT_WIDTH, TEXT_WIDTH),
        "mixed": (TEXT_WIDTH, TEXT_WIDTH),
        "inner": (TEXT_WIDTH, TEXT_INNER),
        "outer": (TEXT_INNER, TEXT_WIDTH),
        "output": (TEXT_WIDTH, len(LETTERS)),
    }.items():
        shapes |= {f"{layer}.kernel": (inputs, outputs), f"{layer}.bias": (outputs,)}
    for layer in ("before_attention", "before_inner", "before_output"):
        shapes |= {f"{layer}.scale": (TEXT_WIDTH,), f"{layer}.bias": (TEXT_WIDTH,)}
    return shapes


TRANSFORMER = EmbeddedTask(
    name="transformer",
    summary=f"English prose, a transformer block of {TEXT_HEADS} heads and width {TEXT_WIDTH}",
    score="test accuracy",
    loss="classes",
    samples=_TEXT_TRAIN,
    epochs=3,
    learning_rate=0.05,
    shapes=_transformer_shapes(),
    load=load_text,
)

DEFAULT = "digits-mlp"

TASKS: Mapping[str, EmbeddedTask] = MappingProxyType(
    {task.name: task for task in (MLP, CNN, TRANSFORMER, REGRESSION)}
)


def find(name: str) -> EmbeddedTask:
    """Find a task by its name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
