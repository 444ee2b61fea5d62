"""Describe a model in words that mean the same in every framework, and convert its arrays.

A description is plain data, which travels between processes. The canonical layout is Keras's
channels-last one (kernels of (..., in, out)), save that a Dense behind a flattened map, and what
follows it in that order, counts channels first, as torch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from dream.model_description.steps import Ops, Shape, Steps, apply, inverse, shape_after

OTHER = "other"
"""The kind of a layer with parameters of its own that no adapter knows: its parameters have the
roles "0", "1", ... and keep their layout."""


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A parameter, or an equal piece of it along dim 0, under its canonical role.

    shape: in the framework; steps: take it to the canonical layout.
    summed: several parts of the layer have this role, and the layer uses their sum. The
        gradient of each is that of the sum.
    """

    role: str
    shape: Shape
    steps: Steps = ()
    summed: bool = False

    @property
    def canonical_shape(self) -> Shape:
        return shape_after(self.steps, self.shape)


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or buffer as the framework has it.

    name: unique in the model; dtype: its common name ("float32").
    parts: one, or several where the framework packs them along dim 0, in order.
    same_as: the name under which the same array came before, where it is tied; else "".
    """

    name: str
    shape: Shape
    dtype: str
    trainable: bool
    parts: tuple[Part, ...]
    same_as: str = ""


@final
@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with parameters.

    settings: hyper-parameters in Keras's words (momentum is what is kept of the old average;
        dtype is what is computed in).
    channels_first: what goes in and out has its channels in axis 1, where it has three dims.
    time_first: the first dim is time, the second the batch.
    flattened: the shape (*space, channels) whose flattening goes in, in that order; canonical is
        the order of (channels, *space). unflattened: the same of what comes out.
    records: whether what goes in and out is one array that has a meaning in other frameworks.
    """

    name: str
    kind: str
    parameters: tuple[Parameter, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    channels_first: bool = False
    time_first: bool = False
    flattened: Shape = ()
    unflattened: Shape = ()
    records: bool = True

    @property
    def roles(self) -> dict[str, Shape]:
        """role -> canonical shape, in the roles' alphabetical order."""
        parts = [part for parameter in self.parameters for part in parameter.parts]
        return dict(sorted((part.role, part.canonical_shape) for part in parts))

    @property
    def summed(self) -> frozenset[str]:
        """The roles that are sums of several parameters."""
        return frozenset(
            part.role for parameter in self.parameters for part in parameter.parts if part.summed
        )

    def holders(self, role: str) -> list[Parameter]:
        """Return the parameters that have a part of this role."""
        return [p for p in self.parameters if any(part.role == role for part in p.parts)]


@final
@dataclass(frozen=True, slots=True)
class Description:
    """A model's layers with parameters, in order: as called, where it was described on a batch;
    else as defined."""

    framework: str
    layers: tuple[Layer, ...]

    def layer(self, name: str) -> Layer:
        return next(layer for layer in self.layers if layer.name == name)


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
    """Return the framework's arrays by parameter's name, the inverse of `to_canonical`.

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
