"""A Keras model's layers in the words of every framework, and their layouts on any backend's
tensors, in a graph too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any, final

import keras
from keras import tree

from dream._errors import ConfigurationError
from dream.adapters.keras import private
from dream.adapters.keras.model_description import layers as kinds
from dream.adapters.keras.model_description.calls import LayerCall, Orders, recorded
from dream.adapters.keras.model_description.layers import Found
from dream.model_description.layers import OTHER, Description, Layer, Parameter, Part
from dream.model_description.steps import Shape, Steps, dense_order

_ops = keras.ops


@final
class KerasOps:
    """The steps on the backend's tensors; gradients flow through them."""

    def permute(self, x: Any, axes: Sequence[int]) -> Any:
        return _ops.transpose(x, tuple(axes))

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return _ops.reshape(x, tuple(shape))

    def reorder(self, x: Any, dim: int, order: Sequence[int]) -> Any:
        return _ops.take(x, list(order), axis=dim)

    def split(self, x: Any, count: int) -> Sequence[Any]:
        return list(_ops.split(x, count))

    def join(self, parts: Sequence[Any]) -> Any:
        return _ops.concatenate(list(parts))

    def zeros(self, like: Any) -> Any:
        return _ops.zeros_like(like)


OPS = KerasOps()


def describe(model: Any, inputs: Any = None) -> Description:
    """Describe the layers with parameters.

    inputs: a batch, as the model takes it. With it, the layers come in the order of their calls,
        those not called last; without it, in the order of their definition. A map that is
        flattened is seen by a call: a subclassed model that flattens one needs the batch.
    Raises ConfigurationError for a model that is not built, and Unsupported for a layer whose
    variables no other framework can have.
    """
    given = _example(model) if inputs is None else inputs
    if given is None:
        return description(model, (), in_order=False)
    with recorded() as calls:
        model(given, training=False)
    return description(model, calls, in_order=inputs is not None)


def description(
    model: Any,
    calls: Sequence[LayerCall],
    *,
    in_order: bool = True,
    in_order_given: Set[str] = frozenset(),
) -> Description:
    """Do the same from calls that have been recorded. in_order_given: layers that count a flattened
    map as they are given it."""
    _check(model, calls)
    orders = Orders(calls)
    places = {id(call.layer): place for place, call in reversed(list(enumerate(calls)))}
    walked = list(_walk(model, ""))
    if in_order:
        walked.sort(key=lambda item: places.get(id(item[1]), len(calls)))  # stable
    for name, layer, found in walked:
        if _below(name, found) in in_order_given:
            orders.flattened.pop(id(layer), None)
    seen: dict[int, str] = {}
    layers = [_layer(name, layer, found, orders, seen) for name, layer, found in walked]
    return Description("keras", tuple(layers))


def layers(model: Any) -> dict[str, Any]:
    """Return the layers with parameters by their names."""
    return {_below(name, found): layer for name, layer, found in _walk(model, "")}


def variables(model: Any) -> dict[str, Any]:
    """Return the keras.Variables by the names of parameters and buffers that `describe` gives."""
    return {
        f"{name}/{own}": variable
        for name, layer, _ in _walk(model, "")
        for own, variable in kinds.variables(layer).items()
    }


def _example(model: Any) -> Any:
    """Return zeros as a functional or sequential model takes them; None for others."""
    if not getattr(model, "inputs", None):
        return None
    given = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    return tree.map_structure(
        lambda x: _ops.zeros([1, *(size or 8 for size in x.shape[1:])], dtype=x.dtype), given
    )


def _check(model: Any, calls: Sequence[LayerCall]) -> None:
    if not model.built:
        raise ConfigurationError(
            f"The model has no variables yet. Received: {model.name!r}, not built. Give it an "
            "Input layer, or describe it on a batch."
        )
    flatten = [each for each in private.layers_of(model)
               if isinstance(each, keras.layers.Flatten)]  # fmt: skip
    if flatten and not calls:
        raise ConfigurationError(
            "What this model flattens is seen by a call only. Received: "
            f"{model.name!r}, a {type(model).__name__} with the layer {flatten[0].name!r}, and no "
            "batch. Give a batch of inputs."
        )


def _below(name: str, found: Found) -> str:
    return f"{name}/{found.below}" if found.below else name


def _walk(layer: Any, name: str) -> Iterator[tuple[str, Any, Found]]:
    """(name, layer, what it is), depth first. The insides of a known kind belong to it."""
    known = kinds.describe(layer) if layer.weights else ()
    for each in known:
        yield name or layer.name, layer, each
    if known:
        return
    own = [(key, v) for key, v in kinds.own_variables(layer) if v.trainable]
    if own:
        yield name or layer.name, layer, _other(layer, own)
    for key, child in _named(private.children(layer)):
        yield from _walk(child, f"{name}/{key}" if name else key)


def _named(children: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Children by their names; a name that comes again is numbered."""
    seen: dict[str, int] = {}
    for child in children:
        count = seen[child.name] = seen.get(child.name, 0) + 1
        yield child.name if count == 1 else f"{child.name}_{count}", child


def _other(layer: Any, own: Sequence[tuple[str, Any]]) -> Found:
    parts = {key: (Part(str(place), tuple(v.shape)),) for place, (key, v) in enumerate(own)}
    return Found(OTHER, parts, {"class": type(layer).__name__})


def _layer(name: str, layer: Any, found: Found, orders: Orders, seen: dict[int, str]) -> Layer:
    own = kinds.variables(layer)
    flattened = orders.flattened.get(id(layer), ())
    unflattened = orders.unflattened.get(id(layer), ())
    if found.kind != "dense" and flattened:
        unflattened = flattened
    return Layer(
        name=_below(name, found),
        kind=found.kind,
        parameters=tuple(
            _parameter(f"{name}/{key}", own[key], _turned(found, key, flattened, unflattened), seen)
            for key in found.parts
        ),
        settings={**found.settings, "dtype": layer.compute_dtype},
        channels_first=found.channels_first,
        records=not found.below and (found.kind != OTHER or not private.children(layer)),
        flattened=flattened,
        unflattened=unflattened,
    )


def _turned(found: Found, key: str, flattened: Shape, unflattened: Shape) -> tuple[Part, ...]:
    """The parts with the dims of features in the canonical order."""
    if not flattened and not unflattened:
        return found.parts[key]
    (part,) = found.parts[key]
    steps: Steps = part.steps
    if found.kind == "dense" and part.role == "kernel" and flattened:
        steps += dense_order(part.shape, 0, flattened)
    if unflattened:
        steps += dense_order(part.shape, len(part.shape) - 1, unflattened)
    return (Part(part.role, part.shape, steps, part.summed),)


def _parameter(
    name: str, variable: Any, parts: tuple[Part, ...], seen: dict[int, str]
) -> Parameter:
    first = seen.setdefault(id(variable), name)
    return Parameter(
        name=name,
        shape=tuple(variable.shape),
        dtype=str(variable.dtype),
        trainable=bool(variable.trainable),
        parts=parts,
        same_as="" if first == name else first,
    )
