"""Parameters that are all one number, as fresh biases and statistics are, hide what is wrong with
them: for the comparison both models get others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = dict[str, dict[str, Array]]
"""By layer and role, canonical."""


def shaken(weights: Mapping[str, Mapping[str, Array]], seed: int) -> tuple[Weights, list[str]]:
    """The weights with those changed, and which these are, as "layer role"."""
    draws = np.random.default_rng(seed)
    changed: list[str] = []
    result: Weights = {}
    for layer, roles in weights.items():
        result[layer] = {}
        for role, value in roles.items():
            constant = value.size > 1 and bool(np.all(value == value.flat[0]))
            result[layer][role] = _drawn(value, draws) if constant else value
            if constant:
                changed.append(f"{layer} {role}")
    return result, changed


def _drawn(value: Array, draws: np.random.Generator) -> Array:
    """Near what was there, of the same sign: a variance stays positive."""
    noise = draws.uniform(-0.5, 0.5, value.shape)
    centre = float(value.flat[0])
    return np.asarray(noise if centre == 0 else centre * (1 + noise), value.dtype)
