"""Which layers a batch goes through, in order, and what goes in and out of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import keras

from dream.adapters.keras.private import tree

_BEFORE = (
    keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D,
    keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D, keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose,
)  # fmt: skip
"""Layers that have an activation of their own: it is another framework's next layer."""


@final
@dataclass(eq=False)
class Call:
    """A layer's call. given, gave: its first input and output; before: the output before the
    layer's own activation. inner: a call in the midst of another layer's that is no model."""

    layer: Any
    given: Any
    gave: Any = None
    before: Any = None
    inner: bool = False

    @property
    def whole(self) -> bool:
        """Whether a tensor went in and one came out."""
        return self.given is not None and self.gave is not None


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """The calls that layers have while the block lasts, in their order."""
    calls: list[Call] = []
    whole: list[Any] = []
    original = keras.layers.Layer.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = _first([*args, *kwargs.values()])
        made = Call(self, given, inner=any(map(_closed, whole)))
        calls.append(made)
        whole.append(self)
        try:
            with _before_activation(self, made):
                gave = original(self, *args, **kwargs)
        finally:
            whole.pop()
        made.gave = _first(gave)
        if made.before is None:
            made.before = _given_to_activation(made, calls)
        return gave

    keras.layers.Layer.__call__ = call
    try:
        yield calls
    finally:
        keras.layers.Layer.__call__ = original


def _closed(layer: Any) -> bool:
    """Whether what a layer calls is its own affair: Keras's layers know theirs, a user's are only
    a name for those in them."""
    own = type(layer).__module__.partition(".")[0] == "keras"
    return own and not isinstance(layer, keras.Model)


@contextmanager
def _before_activation(layer: Any, call: Call) -> Iterator[None]:
    activation = layer.activation if isinstance(layer, _BEFORE) else None
    if activation is None or isinstance(activation, keras.layers.Layer):
        yield
        return
    layer.activation = _kept(activation, call)
    try:
        yield
    finally:
        layer.activation = activation


def _kept(activation: Callable[..., Any], call: Call) -> Callable[..., Any]:
    def act(x: Any) -> Any:
        call.before = x
        return activation(x)

    return act


def _given_to_activation(call: Call, calls: list[Call]) -> Any:
    """Where the activation is a layer, what that was given; else what the call gave."""
    activation = call.layer.activation if isinstance(call.layer, _BEFORE) else None
    return next((c.given for c in reversed(calls) if c.layer is activation), call.gave)


def _first(nest: Any) -> Any:
    return next((x for x in tree.flatten(nest) if hasattr(x, "shape")), None)
