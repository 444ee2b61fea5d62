"""`recompute="auto"` in a Keras `fit`: what a rank finds, with all kept and under budgets."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import keras
import numpy as np

import dream

AUTO = {"recompute": "auto"}
KNOBS: dict[str, Any] = {
    "kept": {}, "all": {"recompute": True}, "enough": AUTO | {"memory_budget": 1.0},
    "share": AUTO | {"memory_budget": 0.75}, "bytes": AUTO | {"memory_budget": "210KB"},
}  # fmt: skip
layers = keras.layers


class Counted(layers.Layer):  # type: ignore[misc]
    """How often it is called, where a call is one of the process's or of a trace's."""

    calls = 0

    def call(self, x: Any) -> Any:
        Counted.calls += 1
        return keras.ops.tanh(x)


def model() -> Any:
    """A graph with a path around layers, statistics, masks of both kinds of seed, and a chain."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(6, 3, padding="same")(inputs)
    for seed in (3, None):
        y = layers.BatchNormalization()(x)
        y = Counted()(layers.Dropout(0.3, seed=seed)(y))
        x = layers.Add()([x, layers.Conv2D(6, 3, padding="same")(y)])
    chain = [layers.Dense(16, "gelu"), layers.LayerNormalization(), layers.Dropout(0.1)]
    x = layers.GlobalAveragePooling2D()(keras.Sequential(chain)(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def main() -> None:
    """Print, of each way that the command line names, how far the weights are from those with all
    kept, and the calls; then how many models are in memory yet."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(37, 8, 8, 2)).astype("float32"), rng.integers(0, 3, 37)
    kept: list[Any] = []
    models: list[Any] = []
    for name in sys.argv[1:]:
        with dream.strategy("mirrored", **KNOBS[name]):
            made = model()
            made.compile(
                keras.optimizers.SGD(0.05, momentum=0.9),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
            Counted.calls = 0
            made.fit(x, y, batch_size=16, epochs=2, verbose=0)
        weights = made.get_weights()
        models.append(weakref.ref(made))
        del made
        kept = kept or weights
        apart = max(float(np.abs(a - b).max()) for a, b in zip(weights, kept, strict=True))
        print("found", name, apart, Counted.calls, flush=True)
    keras.backend.clear_session()
    gc.collect()
    print("alive", sum(each() is not None for each in models), flush=True)


if __name__ == "__main__":
    main()
