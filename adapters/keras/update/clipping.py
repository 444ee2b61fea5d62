"""The global gradient, clipped where Keras clips: once it is complete and unscaled, after Keras's
own accumulation, whatever wraps the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from dream._errors import ConfigurationError
from dream.adapters.keras import private
from dream.update.update import Knobs

_OWN = ("clipnorm", "global_clipnorm", "clipvalue")


def adopt(optimizer: Any, knobs: Knobs, *, by_norm: bool = True) -> None:
    """Have the optimizer, and the one in it, clip what it applies; once. by_norm: whether it is
    given all of a gradient whose norm there is to clip by."""
    if not knobs.clips:
        return
    inner = vars(optimizer).get("inner_optimizer")
    for each in (optimizer,) if inner is None else (optimizer, inner):
        _check_alone(each, knobs)
        if knobs.clip_norm is None or by_norm:
            private.replace_clipping(each, lambda gradients: clipped(gradients, knobs))


def clipped(gradients: Sequence[Any], knobs: Knobs) -> list[Any]:
    """The gradients of all variables together, by their common norm or by their values."""
    ops = keras.ops
    if knobs.clip_value is not None:
        most = knobs.clip_value
        return [None if g is None else ops.clip(g, -most, most) for g in gradients]
    assert knobs.clip_norm is not None
    squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None]
    norm = ops.sqrt(sum(squares))
    scale = knobs.clip_norm / ops.maximum(norm, max(knobs.clip_norm, 1e-30))
    return [None if g is None else g * ops.cast(scale, g.dtype) for g in gradients]


def _check_alone(optimizer: Any, knobs: Knobs) -> None:
    own = {name: getattr(optimizer, name, None) for name in _OWN}
    given = {name: value for name, value in own.items() if value}
    if given:
        theirs = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ConfigurationError(
            "The gradient would be clipped twice. Received: "
            f"{type(optimizer).__name__}({theirs}), clip_norm={knobs.clip_norm!r}, "
            f"clip_value={knobs.clip_value!r} of dream.strategy. Leave one out."
        )
