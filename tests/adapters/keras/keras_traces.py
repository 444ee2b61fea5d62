"""How many functions TensorFlow traces for a fit, and what it is given to iterate over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph  # no public name tells of a trace

import dream

SAMPLES, BATCH = 30, 8


@contextmanager
def traced() -> Iterator[list[str]]:
    """Inside, the names of the functions that are traced are put into the list."""
    own, names = func_graph.func_graph_from_py_func, []

    def noted(name: str, *args: Any, **kwargs: Any) -> Any:
        names.append(name)
        return own(name, *args, **kwargs)

    func_graph.func_graph_from_py_func = noted
    try:
        yield names
    finally:
        func_graph.func_graph_from_py_func = own


def learned(block: AbstractContextManager[Any], kinds: list[str]) -> list[Any]:
    """Fit for two epochs, the last batch of each a short one. kinds: of what is iterated over."""
    keras.utils.set_random_seed(7)
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((SAMPLES, 3), np.float32), draw.integers(0, 2, SAMPLES)
    with block:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
        model.make_train_function()
        step = model.train_function

        def seen(data: Any) -> Any:
            kinds.append(type(data).__name__)
            return step(data)

        model.train_function = seen
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return [np.asarray(w) for w in model.get_weights()]


def of_a_fit(strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    """One fit without dream, one in the block."""
    kinds: list[str] = []
    with traced() as plain:
        one = learned(nullcontext(), [])
    with traced() as ours:
        found = learned(dream.strategy(strategy, framework="tensorflow", **options), kinds)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(one, found, strict=True))
    return {"plain": plain, "ours": ours, "kinds": sorted(set(kinds)), "apart": apart}


def brought_ahead(options: dict[str, Any]) -> dict[str, Any]:
    """Do the same by the iterator that brings shares to devices that are no CPUs."""
    from dream.adapters.tensorflow.keras.mirrored import MirroredEngine

    MirroredEngine._ahead = property(lambda _: True)
    assert tf.config.list_logical_devices("CPU")
    return of_a_fit("mirrored", options)
