"""What ranks of two frameworks say of a Keras model, and how every rank takes rank 0's values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from dream._layout import Layout
from dream._spec import Framework
from dream.adapters.keras import metrics
from dream.adapters.keras.steps import statistics_of
from dream.collectives import Communicator
from dream.mixed.consistency import Account, kind

_NUMBERS = re.compile(r"_\d+(?=/|$)")


def account_of_fit(model: Any, optimizers: Sequence[Any], framework: Framework) -> Account:
    """This rank's account of a built model that is trained by `fit`, which adds up metrics beside
    what a step does."""
    summed = [*model.trainable_variables, *metrics.states(model), *statistics_of(model)]
    return Account(
        framework, "fit", by_name(model.weights), by_name(summed), states_layout(optimizers)
    )


def by_name(variables: Iterable[Any]) -> Layout:
    return [(unnumbered(v.path), _shape(v), str(v.dtype)) for v in variables]


def states_layout(optimizers: Sequence[Any]) -> Layout:
    """By place, since the name tells of the weights once more."""
    return [
        (f"{type(o).__name__} {index}", _shape(v), str(v.dtype))
        for o in optimizers
        for index, v in enumerate(o.variables)
    ]


def take_rank_0s(variables: Sequence[Any], communicator: Communicator) -> float:
    """Rank 0's values in every rank's variables; how far this rank's were from them."""
    own = [keras.ops.convert_to_numpy(v.value) for v in variables]
    values = communicator.broadcast([a.astype(kind(a.dtype.name), copy=False) for a in own])
    if communicator.rank == 0:
        return 0.0
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return max((apart(a, b) for a, b in zip(own, values, strict=True)), default=0.0)


def apart(own: NDArray[Any], first: NDArray[Any]) -> float:
    """The largest difference of two arrays, in times of the largest value, or of 1."""
    if not own.size or own.dtype.kind != "f":
        return 0.0
    return float(np.abs(own - first).max() / max(1.0, np.abs(first).max()))


def unnumbered(path: str) -> str:
    """A variable's path without the numbers that Keras counts through the process, since a rank
    may have made more objects than others."""
    return _NUMBERS.sub("", path)


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in variable.shape)
