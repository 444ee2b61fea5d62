"""What `dream verify` takes out of Keras's training, to see whether a difference goes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import keras

from dream.adapters.keras import private
from dream.adapters.keras.private import tree
from dream.recording.request import Request

_NOISY = (keras.layers.GaussianNoise, keras.layers.GaussianDropout, keras.layers.AlphaDropout)
"""Layers that draw otherwise than by dropout."""


def change(request: Request) -> None:
    """Change what the request names, for the life of this process."""
    if "no dropout" in request.changes:
        private.backend_random.dropout = _kept_whole
        for noisy in _NOISY:
            noisy.call = _as_in_use(noisy.call)
    if "fixed statistics" in request.changes:
        norm = keras.layers.BatchNormalization
        norm.call = _as_in_use(norm.call)
    if request.parts > 1:
        keras.Model.__call__ = _in_parts(keras.Model.__call__, request.parts)


def _kept_whole(inputs: Any, *_: Any, **__: Any) -> Any:
    return inputs


def _as_in_use(call: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's call that never trains."""

    @wraps(call)
    def wrapped(self: Any, inputs: Any, training: Any = None, **given: Any) -> Any:
        del training
        return call(self, inputs, training=False, **given)

    return wrapped


def _in_parts(call: Callable[..., Any], parts: int) -> Callable[..., Any]:
    """`Model.__call__` of the outermost model in training: on every parts-th sample at a time, so
    that gradients are summed as ranks sum them."""
    busy = False

    @wraps(call)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal busy
        leaves = tree.flatten((args, kwargs))
        symbolic = any(isinstance(x, keras.KerasTensor) for x in leaves)
        if busy or symbolic or kwargs.get("training") is not True:
            return call(self, *args, **kwargs)
        busy = True
        try:
            outputs = [
                call(self, *_part(args, part, parts), **_part(kwargs, part, parts))
                for part in range(parts)
            ]
        finally:
            busy = False
        return tree.map_structure(lambda *pieces: _joined(pieces), *outputs)

    return wrapped


def _part(given: Any, part: int, parts: int) -> Any:
    def cut(x: Any) -> Any:
        return x[part::parts] if getattr(x, "shape", ()) else x

    return tree.map_structure(cut, given)


def _joined(pieces: tuple[Any, ...]) -> Any:
    """The pieces' rows in the samples' order."""
    ops, parts = keras.ops, len(pieces)
    samples = sum(ops.shape(piece)[0] for piece in pieces)
    places = ops.concatenate([ops.arange(part, samples, parts) for part in range(parts)])
    return ops.take(ops.concatenate(list(pieces)), ops.argsort(places), axis=0)
