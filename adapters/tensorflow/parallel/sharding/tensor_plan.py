"""A plan for splitting layers: which dims of which variables lie along the model axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, final, get_args

import keras

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras import private
from dream.adapters.tensorflow.parallel.sharding.dtensor import Specs
from dream.adapters.tensorflow.parallel.sharding.layouts import MODEL, Layouts, whole

Way = Literal["column", "row", "replicate"]
Attention = keras.layers.MultiHeadAttention
_ELEMENTWISE = (
    keras.layers.Activation, keras.layers.Dropout, keras.layers.ReLU, keras.layers.LeakyReLU,
    keras.layers.ELU,
)  # fmt: skip
_HEADS: Mapping[str, Specs] = {
    "query/kernel": (None, MODEL, None),
    "query/bias": (MODEL, None),
    "key/kernel": (None, MODEL, None),
    "key/bias": (MODEL, None),
    "value/kernel": (None, MODEL, None),
    "value/bias": (MODEL, None),
    "attention_output/kernel": (MODEL, None, None),
}
"""Of an attention layer's variables, all but the last bias: each part has its own heads."""


@final
class Planned(Layouts):
    """Variables lie as a plan says, and so does what layers compute with them."""

    gathers = False

    def __init__(self, plan: Mapping[str, object] | str, parts: int) -> None:
        self._plan = plan
        self._parts = parts

    def of_model(self, model: Any) -> dict[str, Specs]:
        found: dict[str, Specs] = {v.path: whole(v.shape) for v in model.variables}
        if self._parts == 1:
            return found
        ways = split_ways(model, self._plan, self._parts)
        for layer in leaves(model):
            if way := ways.get(path_of(layer)):
                found |= specs_of_layer(layer, way, self._parts)
        return found

    def of_state(self, shape: Sequence[int], specs: Specs) -> Specs:
        return specs


def split_ways(model: Any, plan: Mapping[str, object] | str, parts: int) -> dict[str, Way]:
    """By the path of a layer how it is split."""
    layers = leaves(model)
    found = _auto(layers, parts) if isinstance(plan, str) else _given(layers, plan)
    if not set(found.values()) - {"replicate"}:
        raise ConfigurationError(
            f"No layer of this model is split. Received: plan={plan!r}, layers "
            f"{', '.join(layer.name for layer in layers)}. Name two Dense layers, 'column' and "
            "'row', or a MultiHeadAttention; or use 'sharded'."
        )
    return found


def specs_of_layer(layer: Any, way: Way, parts: int) -> dict[str, Specs]:
    """By path the layout of a split layer's variables; those left out are whole."""
    if way == "replicate":
        return {}
    if isinstance(layer, Attention):
        found = {f"{layer.path}/{name}": axes for name, axes in _HEADS.items()}
    elif isinstance(layer, keras.layers.Dense):
        found = _dense(layer, way)
    elif isinstance(layer, keras.layers.Embedding) and way == "column":
        found = {f"{layer.path}/embeddings": (None, MODEL)}
    else:
        raise Unsupported(
            f"This layer cannot be split by tensors. Received: {layer.name!r} "
            f"({type(layer).__name__}), {way!r}. Leave it out of the plan, or use 'sharded' or "
            "split='pipeline'."
        )
    for variable in layer.variables:
        _check(layer, variable, found.get(variable.path, ()), parts)
    return found


def _dense(layer: Any, way: Way) -> dict[str, Specs]:
    if way == "row":
        return {f"{layer.path}/kernel": (MODEL, None)}
    return {f"{layer.path}/kernel": (None, MODEL), f"{layer.path}/bias": (MODEL,)}


def _check(layer: Any, variable: Any, axes: Specs, parts: int) -> None:
    for size, axis in zip(variable.shape, axes, strict=False):
        if axis is not None and size % parts:
            what = "heads" if isinstance(layer, Attention) else "units"
            raise ConfigurationError(
                f"A split layer's {what} must be a multiple of the parts. Received: "
                f"{layer.name!r} with {size}, model={parts}. Choose a multiple, or leave the layer "
                "out of the plan."
            )


def _given(layers: Sequence[Any], plan: Mapping[str, object]) -> dict[str, Way]:
    found: dict[str, Way] = {}
    for pattern, way in plan.items():
        if way not in get_args(Way):
            raise ConfigurationError(
                f"A plan says 'column', 'row' or 'replicate'. Received: {pattern!r}: {way!r}. "
                "Correct it."
            )
        matched = [layer for layer in layers if _matches(layer, pattern)]
        if not matched:
            raise ConfigurationError(
                f"No layer matches this name. Received: plan entry {pattern!r}; the model has "
                f"{', '.join(map(path_of, layers))}. Correct the pattern."
            )
        found |= {path_of(layer): cast(Way, way) for layer in matched}
    return found


def _matches(layer: Any, pattern: str) -> bool:
    """By name or path; `*/fc1` takes an fc1 at any depth."""
    names = (layer.name, path_of(layer), f"/{path_of(layer)}")
    return any(fnmatchcase(name, pattern) for name in names)


def path_of(layer: Any) -> str:
    """Its path, which Keras gives to layers with variables."""
    return str(layer.path or layer.name)


def _auto(layers: Sequence[Any], parts: int) -> dict[str, Way]:
    """Attention by its heads, and a Dense with the one after it where the first gives what the
    second takes: nothing is exchanged between them."""
    found: dict[str, Way] = {}
    first: Any = None
    for layer in layers:
        if isinstance(layer, Attention):
            if layer.num_heads % parts == 0:
                found[layer.path] = "column"
            first = None
        elif isinstance(layer, keras.layers.Dense):
            if first is not None and layer.kernel.shape[0] == first.units:
                found |= {first.path: "column", layer.path: "row"}
                first = None
            else:
                first = layer if layer.units % parts == 0 else None
        elif not isinstance(layer, _ELEMENTWISE):
            first = None
    return found


def leaves(model: Any) -> list[Any]:
    """The layers that a plan may name, in order: attention is one, and not the layers in it."""
    found: list[Any] = []
    inside: set[int] = set()
    for layer in private.layers_of(model):
        if id(layer) in inside:
            continue
        if isinstance(layer, Attention):
            inside |= {id(inner) for inner in private.layers_of(layer)} - {id(layer)}
        if isinstance(layer, Attention) or not private.children(layer):
            found.append(layer)
    return found
