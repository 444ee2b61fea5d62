"""What a Keras layer is found to be, and its variables by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.model_description.layers import Part


@final
@dataclass
class Found:
    """What a layer is. parts: for each of its variables, by its name below the layer."""

    kind: str
    parts: Mapping[str, tuple[Part, ...]]
    settings: dict[str, Any] = field(default_factory=dict)
    channels_first: bool = False


def variables(layer: Any) -> dict[str, Any]:
    """A layer's variables by their names below it: those of inner layers behind these' names."""
    found = dict(own_variables(layer))
    for child in private.children(layer):
        found |= {f"{child.name}/{name}": v for name, v in variables(child).items()}
    return found


def own_variables(layer: Any) -> list[tuple[str, Any]]:
    """(name, variable), of the layer itself."""
    inner = {id(v) for child in private.children(layer) for v in child.weights}
    found: dict[str, Any] = {}
    for variable in layer.weights:
        if id(variable) not in inner:
            name = variable.name
            found[f"{name}_{len(found)}" if name in found else name] = variable
    return list(found.items())


def whole(layer: Any, *names: str, **roles: str) -> dict[str, tuple[Part, ...]]:
    """Every variable of the layer as it is. Raises Unsupported for one with no role."""
    roles = {name: name for name in names} | roles
    found = variables(layer)
    strange = sorted(found.keys() - roles.keys())
    if strange:
        raise Unsupported(
            "This layer has variables that no other framework's has. Received: "
            f"{layer.name!r}, a {type(layer).__name__} with {', '.join(strange)}. Leave out what "
            "made them (quantization, LoRA, renorm, a gate)."
        )
    return {name: (Part(roles[name], tuple(variable.shape)),) for name, variable in found.items()}
