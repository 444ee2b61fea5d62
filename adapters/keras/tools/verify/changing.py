"""What `dream verify` takes out of Keras's training, to see whether a difference goes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import keras

from dream.adapters.keras import private
from dream.adapters.keras.private import tree
from dream.tools.recording.request import Request

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
        whole = "reordered" in request.changes
        keras.Model.__call__ = _in_parts(keras.Model.__call__, request.parts, whole=whole)


def _kept_whole(inputs: Any, *_: Any, **__: Any) -> Any:
    return inputs


def _as_in_use(call: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's call that never trains."""

    @wraps(call)
    def wrapped(self: Any, inputs: Any, training: Any = None, **given: Any) -> Any:
        del training
        return call(self, inputs, training=False, **given)

    return wrapped


def _in_parts(call: Callable[..., Any], parts: int, *, whole: bool) -> Callable[..., Any]:
    """`Model.__call__` of the outermost model in training: on every parts-th sample at a time, so
    that gradients are summed as ranks sum them. whole: on all of them, in that order."""
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
            if whole:
                output = call(self, *_reordered(args, parts), **_reordered(kwargs, parts))
                return tree.map_structure(lambda piece: _back(piece, parts), output)
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


def _reordered(given: Any, parts: int) -> Any:
    """The parts' samples one behind the other."""

    def order(x: Any) -> Any:
        cut = [x[part::parts] for part in range(parts)] if getattr(x, "shape", ()) else []
        return keras.ops.concatenate(cut) if cut else x

    return tree.map_structure(order, given)


def _joined(pieces: tuple[Any, ...]) -> Any:
    """The pieces' rows in the samples' order."""
    return _back(keras.ops.concatenate(list(pieces)), len(pieces))


def _back(rows: Any, parts: int) -> Any:
    """Rows of one part behind the other's, in the samples' order."""
    ops = keras.ops
    samples = ops.shape(rows)[0]
    places = ops.concatenate([ops.arange(part, samples, parts) for part in range(parts)])
    return ops.take(rows, ops.argsort(places), axis=0)
