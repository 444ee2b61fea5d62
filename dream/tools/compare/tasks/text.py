"""English prose, character by character: the descriptions of scikit-learn's data sets."""

from __future__ import annotations

import re

from dream.tools.compare.tasks.task import Data, Task, dataset

LETTERS = " .abcdefghijklmnopqrstuvwxyz"
WIDTH, INNER, LENGTH = 32, 64, 16
"""Of a character's vector, of the feed-forward layer, and of a sample in characters."""
HEADS = 2
TRAIN = 1029
"""16 batches of 64 and one of 5."""
_TEST = 256
_SOURCES = ("iris", "wine", "breast_cancer", "diabetes", "linnerud", "digits")


def load() -> Data:
    """x: int32 (n, 16), characters by number; y: int64 (n, 16), the one after each."""
    import numpy as np

    prose = "".join(dataset(name).DESCR for name in _SOURCES)
    letters = re.sub("[^a-z.]+", " ", prose.lower())
    numbers = np.array([LETTERS.index(letter) for letter in letters], np.int64)
    starts = np.linspace(0, len(numbers) - LENGTH - 1, TRAIN + _TEST).astype(np.int64)
    windows = numbers[starts[:, None] + np.arange(LENGTH + 1)]
    windows = windows[np.random.default_rng(0).permutation(len(windows))]
    x, y = windows[:, :-1].astype(np.int32), windows[:, 1:].copy()
    return Data(x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:])


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "letters.table": (len(LETTERS), WIDTH),
        "places.table": (LENGTH, WIDTH),
    }
    for layer, (inputs, outputs) in {
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, WIDTH),
        "value": (WIDTH, WIDTH),
        "mixed": (WIDTH, WIDTH),
        "inner": (WIDTH, INNER),
        "outer": (INNER, WIDTH),
        "output": (WIDTH, len(LETTERS)),
    }.items():
        shapes |= {f"{layer}.kernel": (inputs, outputs), f"{layer}.bias": (outputs,)}
    for layer in ("before_attention", "before_inner", "before_output"):
        shapes |= {f"{layer}.scale": (WIDTH,), f"{layer}.bias": (WIDTH,)}
    return shapes


TRANSFORMER = Task(
    name="transformer",
    summary=f"English prose, a transformer block of {HEADS} heads and width {WIDTH}",
    score="test accuracy",
    loss="classes",
    samples=TRAIN,
    epochs=3,
    learning_rate=0.05,
    shapes=_shapes(),
    load=load,
)
