"""A layer's values between the framework's layout and the canonical one, on any arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dream.tools.port_check.description import Layer, Parameter
from dream.tools.port_check.steps import Ops, apply, inverse

What = Literal["value", "gradient"]


def to_canonical(
    layer: Layer, arrays: Mapping[str, Any], ops: Ops, what: What = "value"
) -> dict[str, Any]:
    """role -> canonical array, in the roles' alphabetical order.

    arrays: by the parameters' names; a role is left out where one of its parameters is.
    what: values of parts that are summed are added up; of their gradients, which are all the
        same, the first is taken.
    """
    found: dict[str, Any] = {}
    lacking: set[str] = set()
    for parameter in layer.parameters:
        if parameter.name not in arrays:
            lacking |= {part.role for part in parameter.parts}
            continue
        for role, canonical in _parts(parameter, arrays[parameter.name], ops):
            if role not in found:
                found[role] = canonical
            elif what == "value":
                found[role] = found[role] + canonical
    return {role: found[role] for role in sorted(found) if role not in lacking}


def _parts(parameter: Parameter, array: Any, ops: Ops) -> list[tuple[str, Any]]:
    several = len(parameter.parts) > 1
    pieces = ops.split(array, len(parameter.parts)) if several else [array]
    return [
        (part.role, apply(part.steps, piece, ops))
        for part, piece in zip(parameter.parts, pieces, strict=True)
    ]


def from_canonical(
    layer: Layer, arrays: Mapping[str, Any], ops: Ops, what: What = "value"
) -> dict[str, Any]:
    """The inverse: parameter's name -> array.

    arrays: by role; a parameter is left out where one of its roles is.
    what: of the values of parts that are summed the first is given all and the others zeros; of
        gradients, each is given the same.
    """
    found: dict[str, Any] = {}
    given: set[str] = set()
    for parameter in layer.parameters:
        if any(part.role not in arrays for part in parameter.parts):
            continue
        pieces = []
        for part in parameter.parts:
            piece = apply(inverse(part.steps), arrays[part.role], ops)
            again = part.role in given and what == "value"
            pieces.append(ops.zeros(piece) if again else piece)
            given.add(part.role)
        found[parameter.name] = ops.join(pieces) if len(pieces) > 1 else pieces[0]
    return found
