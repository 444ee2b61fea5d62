"""A model's arrays as one list in the canonical order and layout, and back: what ranks of two
frameworks hand to a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from dream._errors import Unsupported
from dream._layout import Layout
from dream.tools.port_check.convert import What, from_canonical, to_canonical
from dream.tools.port_check.description import Description, Layer
from dream.tools.port_check.steps import Ops


@final
class InOrder:
    """The layers of one model. A tied array travels once, under the name that came first."""

    def __init__(self, description: Description, ops: Ops) -> None:
        for layer in description.layers:
            _check(layer)
        self._layers = description.layers
        self._ops = ops
        self._tied = {p.name for layer in self._layers for p in layer.parameters if p.same_as}

    @property
    def names(self) -> list[str]:
        """Of every parameter and buffer that travels."""
        found = [p.name for layer in self._layers for p in layer.parameters]
        return [name for name in found if name not in self._tied]

    def layout(self, names: Sequence[str]) -> Layout:
        """Of the list that arrays of these names make: (layer and role, canonical shape, dtype),
        the layer told by its kind too."""
        return [
            (f"{layer.name} ({layer.kind}) {role}", layer.roles[role], _dtype(layer, role))
            for layer, roles in self._roles(names)
            for role in roles
        ]

    def listed(self, arrays: Mapping[str, Any], what: What) -> list[Any]:
        """The arrays, by name, as canonical ones in order."""
        free = {name: array for name, array in arrays.items() if name not in self._tied}
        return [
            canonical
            for layer in self._layers
            for canonical in to_canonical(layer, free, self._ops, what).values()
        ]

    def named(self, listed: Sequence[Any], names: Sequence[str], what: What) -> dict[str, Any]:
        """The inverse of `listed`, for arrays of these names."""
        following = iter(listed)
        found: dict[str, Any] = {}
        for layer, roles in self._roles(names):
            canonical = {role: next(following) for role in roles}
            found |= from_canonical(layer, canonical, self._ops, what)
        return found

    def _roles(self, names: Sequence[str]) -> list[tuple[Layer, list[str]]]:
        """Each layer, with the roles of which every holder is named."""
        named = set(names) - self._tied
        return [
            (layer, [r for r in layer.roles if all(p.name in named for p in layer.holders(r))])
            for layer in self._layers
        ]


def _dtype(layer: Layer, role: str) -> str:
    return layer.holders(role)[0].dtype


def _check(layer: Layer) -> None:
    if layer.summed:
        role = min(layer.summed)
        names = ", ".join(p.name for p in layer.holders(role))
        raise Unsupported(
            f"This layer adds up parameters where the other framework has one ({role}), so an "
            f"optimizer would move it as often. Received: {names} of {layer.name!r} "
            f"({layer.kind}). Say bias=False there and use_bias=False in Keras, or train it in "
            "Keras on both."
        )
