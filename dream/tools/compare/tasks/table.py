"""A table of numbers: how far diabetes came on in a year, from ten figures of 442 people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dream.tools.compare.tasks.task import Data, Task, dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRAIN = 353
"""5 batches of 64 and one of 33."""


def load() -> Data:
    """x: float32 (n, 10); y: float32 (n, 1). Both of mean 0 and variance 1 over all people."""
    import numpy as np

    found = dataset("diabetes")
    order = np.random.default_rng(0).permutation(len(found.target))
    x, y = (_standard(each[order]) for each in (found.data, found.target[:, None]))
    return Data(x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:])


def _standard(values: NDArray[Any]) -> NDArray[np.float32]:
    import numpy as np

    standard: NDArray[np.float32] = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    return standard


REGRESSION = Task(
    name="regression",
    summary="a table of 442 people, MLP 10-32-1, squared error",
    score="test R2",
    loss="squares",
    samples=TRAIN,
    epochs=8,
    learning_rate=0.01,
    shapes={
        "hidden.kernel": (10, 32),
        "hidden.bias": (32,),
        "output.kernel": (32, 1),
        "output.bias": (1,),
    },
    load=load,
)
