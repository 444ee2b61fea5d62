"""What ranks do in the tests of models that are laid out as they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from split_scenes import fitted, momentum, stepped, told, weights, wide

import dream

UNITS, LAYERS = 768, 40


class Lazy(keras.Model):
    """It makes its variables when it sees a batch; one of them by its own word."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(64, activation="tanh"), layers.Dense(4)
        self.scale = self.add_weight(shape=(64,), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return self.last(self.first(x) * self.scale)


def lazy() -> Any:
    keras.utils.set_random_seed(3)
    return Lazy()


def ranks() -> dict[str, Any]:
    """Two processes."""
    found: dict[str, Any] = {}
    with dream.strategy("sharded") as strategy:
        rank = strategy.topology.rank
        found["kinds"] = [type(v.value).__name__ for v in wide().variables]
        narrow = layers.Dense(64, dtype="bfloat16", name="narrow")
        narrow.build((None, 8))
        found["narrow"] = str(narrow.kernel.value.dtype), narrow.kernel.value.local()[0].shape[1]
        found["apart"] = apart(rank)
        found["peak"] = peak(strategy)
        found["lazy"] = weights(fitted(lazy()))
        stepped(strategy, stepping := lazy())
        found["steps"] = weights(stepping)
        late = lazy()
        found["differ"] = told(lambda: different(rank))
    found["late"] = weights(fitted(late))
    with dream.strategy("sharded"):
        found["set apart"] = told(lambda: fitted(set_apart(rank)))  # the ranks differ from then on
    found["one"] = weights(fitted(lazy()))  # plain Keras, after the blocks
    return found


def apart(rank: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(what this rank would have drawn, what its model has)."""
    keras.utils.set_random_seed(5 + rank)
    drawn = keras.initializers.GlorotUniform()((8, 64))
    keras.utils.set_random_seed(5 + rank)
    return [np.asarray(drawn)], weights(keras.Sequential([keras.Input((8,)), layers.Dense(64)]))


def peak(strategy: Any) -> dict[str, float]:
    """In bytes, how much this process grew at most while it made a model, then with the state of
    its optimizer, and how much the model is."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    dense = [layers.Dense(UNITS, use_bias=False) for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((UNITS,)), *dense])
    made = status("VmHWM") - before
    between = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    strategy._adapter.parallelism.placement.place_optimizer(momentum(), model.trainable_variables)
    return {
        "made": made,
        "state": status("VmHWM") - between,
        "whole": 4.0 * sum(int(np.prod(v.shape)) for v in model.variables),
    }


def status(name: str) -> float:
    """One of the kernel's figures of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return float(line.split()[1]) * 1024


def different(rank: int) -> Any:
    return keras.Sequential([keras.Input((8,)), layers.Dense(4 + 2 * rank, name="odd")])


def set_apart(rank: int) -> Any:
    """Each rank would take its part of other values."""
    model = wide()
    model.set_weights([np.full(v.shape, float(rank), np.float32) for v in model.variables])
    return model
