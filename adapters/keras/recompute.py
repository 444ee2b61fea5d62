"""Layers whose values are not kept for backward, but computed again in it, with the same masks of
dropout, and without a second update of running statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from math import ceil, sqrt
from typing import Any

import keras
from keras import tree

from dream._errors import ConfigurationError, Unsupported
from dream._patches import value_set
from dream.adapters.keras import private
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.randomness.draws import bound
from dream.adapters.keras.update import auto_recompute
from dream.update.recomputing import AUTO

_inside: ContextVar[bool] = ContextVar("dream.recomputed", default=False)


def adopt(model: Any, engine: Engine) -> None:
    """Have a built model compute again in backward what was asked for; once."""
    asked = engine.update_options.recompute
    if not asked or not isinstance(model, keras.Layer) or not model.built:
        return
    if asked == AUTO:
        auto_recompute.adopt(
            model, engine.chooser, lambda layers, call: _recomputed(layers, engine, call)
        )
        return
    if asked == "sqrt":
        _in_runs(model, engine)
        return
    for layer in _chosen(model, asked):
        private.replace_call(layer, partial(_recomputed, [layer], engine))


def adopt_when_called(model: Any, engine: Engine) -> None:
    """Do the same to a model that is being made."""
    if engine.update_options.recompute:
        private.before_first_call(model, lambda: adopt(model, engine))


def _chosen(model: Any, asked: bool | str | Sequence[str]) -> list[Any]:
    if asked is True:
        return _steps_of(model)
    assert not isinstance(asked, (bool, str))
    named = {layer.name: layer for layer in private.layers_of(model)}
    missing = [name for name in asked if name not in named]
    if missing:
        raise ConfigurationError(
            "There is no layer of this name to recompute. Received: "
            f"{', '.join(map(repr, missing))}. The layers of {model.name!r}: "
            f"{', '.join(map(repr, named))}."
        )
    return [named[name] for name in asked]


def _steps_of(model: Any) -> list[Any]:
    """Return the layers that a model is made of."""
    children = private.children(model)
    return [layer for layer in children if not isinstance(layer, keras.layers.InputLayer)]


def _in_runs(model: Any, engine: Engine) -> None:
    """Compute a chain of n layers in runs of the square root of n: what is kept is the input of
    each run, and the values of one run while backward is in it."""
    layers = _steps_of(model)
    _check_chain(model, layers)
    size = ceil(sqrt(len(layers)))
    runs = [layers[start : start + size] for start in range(0, len(layers), size)]

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        parts = [_recomputed(run, engine, _through(run)) for run in runs]
        plain = isinstance(model, keras.Sequential)
        outputs = None if plain else private.output_structure(model)

        def chain(inputs: Any, training: Any = None, mask: Any = None) -> Any:
            if not training or any(m is not None for m in tree.flatten(mask)):
                return call(inputs, training=training, mask=mask)
            (x,) = private.flat_inputs(model, inputs)  # a list of one in parts, and as users give
            for part in parts:
                x = part(x, training=training)
            return tree.pack_sequence_as(outputs, [x]) if isinstance(outputs, dict) else x

        return chain

    private.replace_call(model, make)


def _through(run: Sequence[Any]) -> Callable[..., Any]:
    def call(x: Any, training: Any = None) -> Any:
        for layer in run:
            x = layer(x, training=training) if private.knows_training(layer) else layer(x)
            if private.mask_of(x) is not None:
                raise Unsupported(
                    "A mask does not pass from run to run. Received: recompute='sqrt', and "
                    f"{layer.name!r} gives one. Use recompute=True."
                )
        return x

    return call


def _check_chain(model: Any, layers: Sequence[Any]) -> None:
    if isinstance(model, keras.Sequential):
        return
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if inputs and outputs and len(inputs) == len(outputs) == 1:
        calls = [call for layer in layers for call in private.calls_of(layer, model)]
        ends = [inputs[0], *(call.output_tensors[0] for call in calls)]
        follows = [
            len(call.output_tensors) == len(call.input_tensors) == 1
            and call.input_tensors[0] is before
            for call, before in zip(calls, ends, strict=False)
        ]
        if len(calls) == len(layers) and all(follows) and ends[-1] is outputs[0]:
            return
    raise Unsupported(
        "The square root of a model's depth is that of a chain of layers, each called on what the "
        f"one before it gives. Received: recompute='sqrt' for {type(model).__name__} "
        f"{model.name!r}. Use recompute=True, or name layers."
    )


def _recomputed(
    layers: Sequence[Any], engine: Engine, call: Callable[..., Any]
) -> Callable[..., Any]:
    """Have `call`, which `layers` take part in, computed again in backward."""

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        given = tree.flatten((args, kwargs))
        if _inside.get() or kwargs.get("training") is False or private.is_rehearsal(given):
            return call(*args, **kwargs)
        places = [i for i, x in enumerate(given) if engine.differentiable(x)]
        states = [v for layer in layers for v in private.all_states(layer)]
        before = list(zip(states, engine.copies(states), strict=True))
        first, shape = [True], [None]
        casting = private.casting()

        def run(*tensors: Any) -> list[Any]:
            values = list(given)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            inner, named = tree.pack_sequence_as((args, kwargs), values)
            if first:
                first.clear()
                with value_set(_inside, True):  # as in backward, layers in it are kept
                    result = _checked(layers, lambda: call(*inner, **named))
            else:
                with keras.StatelessScope(state_mapping=before), casting():
                    result = call(*inner, **named)
            shape[0] = result
            return list(tree.flatten(result))

        outputs = engine.recompute(bound(run), [given[place] for place in places], layers)
        return tree.pack_sequence_as(shape[0], list(outputs))

    return recomputed


def _checked(layers: Sequence[Any], act: Callable[[], Any]) -> Any:
    before = [private.added_losses(layer) for layer in layers]
    result = act()
    for layer, count in zip(layers, before, strict=True):
        if private.added_losses(layer) != count:
            raise Unsupported(
                "A loss that a layer adds while it is called has no gradient where the call is "
                f"computed again. Received: recompute with {layer.name!r}, which calls add_loss. "
                "Name the other layers: recompute=[...]."
            )
    return result
