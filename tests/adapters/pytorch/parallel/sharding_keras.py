"""Keras models on torch, under strategies that split a model."""

from __future__ import annotations

from typing import Any

import numpy as np
from sharding_models import refused

import dream

WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sharded", {}),
    ("sharded", {"zero": 1}),
    ("model_parallel", {"split": "tensor"}),
    ("model_parallel", {"split": "pipeline"}),
    ("hybrid", {"split": "tensor"}),
)
ALONE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("data_parallel", {"devices": 2}),
    ("model_parallel", {"split": "layers", "model": 2}),
)


def in_one_process() -> dict[str, str]:
    return refusals(ALONE)


def refusals(ways: tuple[tuple[str, dict[str, Any]], ...] = WAYS) -> dict[str, str]:
    import keras  # in the ranks alone: its backend is chosen there

    def made() -> Any:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        return model

    def fitted(model: Any) -> None:
        model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)

    before = made()
    found = {}
    for name, options in ways:
        with dream.strategy(name, framework="torch", **options) as strategy:
            found[f"{name} {options} made"] = refused(made)
            found[f"{name} {options} prepared"] = refused(lambda s=strategy: s.prepare(before))
            found[f"{name} {options} fitted"] = refused(lambda: fitted(before))
    fitted(before)
    return found
