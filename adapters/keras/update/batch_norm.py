"""BatchNorm over the whole batch: inside a step of dream's, statistics are those of all parts'
samples. Keras's own `synchronized=True` knows one process, and even shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import keras

from dream._patches import value_set
from dream.adapters.keras import private
from dream.adapters.keras.engine import Engine

Moments = Callable[[Any, Sequence[int], Any], tuple[Any, Any]]
"""The mean and the variance of x over some axes and all parts, where a mask (or None) is set."""

_moments: ContextVar[Moments | None] = ContextVar("dream.keras_moments", default=None)


def layers_of(model: Any) -> list[Any]:
    """Return the layers that normalise by a batch."""
    found = private.layers_of(model)
    return [layer for layer in found if isinstance(layer, keras.layers.BatchNormalization)]


def synchronises(model: Any, engine: Engine) -> bool:
    """Whether statistics are of the global batch, and there are any."""
    return engine.synchronises and bool(layers_of(model) or engine.norms_of(model))


def synchronise(model: Any, engine: Engine) -> None:
    """Have the model's layers ask for the statistics of all parts, where a step offers them."""
    if engine.synchronises:
        for layer in layers_of(model):
            private.replace_moments(layer, _current_moments)
        engine.synchronise_norms(model, _moments.get)


def _current_moments(own: Callable[..., Any], layer: Any, inputs: Any, mask: Any) -> Any:
    whole = _moments.get()
    if whole is None:
        return own(inputs, mask)
    return whole(inputs, private.reduction_axes(layer), mask)


def standing_still(note: Callable[[Sequence[Any]], None]) -> AbstractContextManager[None]:
    """Inside, layers find a mean of 0 and a variance of 1 in every batch. note: told of its
    shape."""

    def moments(x: Any, axes: Sequence[int], mask: Any) -> tuple[Any, Any]:
        del mask
        note(list(x.shape))
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
        return keras.ops.zeros(shape, x.dtype), keras.ops.ones(shape, x.dtype)

    return value_set(_moments, moments)


def global_statistics(
    model: Any, engine: Engine, *, present: Any = 1.0, worth: Any = 1.0
) -> AbstractContextManager[None]:
    """Surround a step on a part's share.

    present: 0 where the part's samples do not count. worth: what the part's gradients are
    multiplied by later.
    """
    if not synchronises(model, engine):
        return nullcontext()

    def moments(x: Any, axes: Sequence[int], mask: Any) -> tuple[Any, Any]:
        return engine.moments(x, axes, mask, present, worth)

    return value_set(_moments, moments)
