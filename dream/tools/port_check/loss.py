"""What is differentiated: a loss of the outputs, and its gradient by them, in float64. NumPy does
it for both models, so that the frameworks' own losses have no part in a difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dream._errors import ConfigurationError, unknown

Array = NDArray[Any]
Loss = Callable[[Sequence[Array]], tuple[float, list[Array]]]
"""Outputs -> the loss and its gradient by each."""


def make(name: str, y: Array | None, seed: int) -> Loss:
    """name: "mean_squared", against y, or where there is none against targets that `seed` draws;
    "cross_entropy", of logits (..., classes) against class numbers y (...)."""
    if name == "mean_squared":
        return lambda outputs: _mean_squared(outputs, _targets(outputs, y, seed))
    if name != "cross_entropy":
        raise unknown("loss", name, ("mean_squared", "cross_entropy"))
    if y is None:
        raise ConfigurationError(
            "cross_entropy needs class numbers. Received: a batch without y. Add y to the file."
        )
    return lambda outputs: _cross_entropy(outputs, y)


def _targets(outputs: Sequence[Array], y: Array | None, seed: int) -> list[Array]:
    if y is None:
        draws = np.random.default_rng(seed)
        return [draws.standard_normal(output.shape) for output in outputs]
    if len(outputs) != 1 or outputs[0].shape != y.shape:
        raise ConfigurationError(
            "mean_squared needs a target like the output. Received: y "
            f"{y.shape}, outputs {', '.join(str(o.shape) for o in outputs)}. Leave y out, or name "
            "another loss."
        )
    return [y]


def _mean_squared(outputs: Sequence[Array], targets: Sequence[Array]) -> tuple[float, list[Array]]:
    gaps = [np.asarray(o, float) - t for o, t in zip(outputs, targets, strict=True)]
    value = sum(float(np.mean(gap**2)) for gap in gaps)
    return value, [2 * gap / gap.size for gap in gaps]


def _cross_entropy(outputs: Sequence[Array], y: Array) -> tuple[float, list[Array]]:
    if len(outputs) != 1 or outputs[0].shape[:-1] != y.shape:
        raise ConfigurationError(
            "cross_entropy needs one output of shape (*y.shape, classes). Received: y "
            f"{y.shape}, outputs {', '.join(str(o.shape) for o in outputs)}."
        )
    logits = np.asarray(outputs[0], float)
    logits = logits - logits.max(-1, keepdims=True)
    log_likely = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    hot = np.arange(logits.shape[-1]) == y[..., None]
    return float(-(log_likely * hot).sum() / y.size), [(np.exp(log_likely) - hot) / y.size]
