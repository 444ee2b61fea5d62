"""A model's layers in words of every framework, as plain values that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dream._errors import Unsupported
from dream.checkpoint.content import named_in
from dream.model_description.layers import Description, Layer, Parameter, Part
from dream.model_description.steps import Permute, Reorder, Reshape, Step

Plain = list[dict[str, Any]]
_PERMUTE, _RESHAPE, _REORDER = "permute", "reshape", "reorder"


def to_plain(description: Description, called: Mapping[str, str]) -> Plain:
    """called: the names in the checkpoint of the parameters, by those in the description."""
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "parameters": [_plain_parameter(each, called) for each in layer.parameters],
        }
        for layer in description.layers
    ]


def from_plain(plain: Any) -> list[Layer]:
    """Return the layers. Raises Unsupported where they could not be described."""
    if not isinstance(plain, list):
        raise Unsupported(
            "This checkpoint's model cannot be converted to another framework. Received: "
            f"{plain or 'no description of its layers'}"
        )
    return [
        Layer(each["name"], each["kind"], tuple(map(_parameter, each["parameters"])))
        for each in plain
    ]


def among(described: Mapping[str, Sequence[Layer]]) -> list[Layer]:
    """Return the layers of all models, their parameters named as an optimizer's are."""
    return [
        replace(layer, parameters=tuple(_named(each, model) for each in layer.parameters))
        for model, layers in described.items()
        for layer in layers
    ]


def _named(parameter: Parameter, model: str) -> Parameter:
    first = parameter.same_as and named_in(model, parameter.same_as)
    return replace(parameter, name=named_in(model, parameter.name), same_as=first)


def _plain_parameter(parameter: Parameter, called: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": called[parameter.name],
        "dtype": parameter.dtype,
        "shape": list(parameter.shape),
        "trainable": parameter.trainable,
        "same_as": called[parameter.same_as] if parameter.same_as else "",
        "parts": [
            {
                "role": part.role,
                "shape": list(part.shape),
                "summed": part.summed,
                "steps": [_plain_step(step) for step in part.steps],
            }
            for part in parameter.parts
        ],
    }


def _parameter(plain: Mapping[str, Any]) -> Parameter:
    parts = [
        Part(
            each["role"], tuple(each["shape"]), tuple(map(_step, each["steps"])), each["summed"]
        )
        for each in plain["parts"]
    ]  # fmt: skip
    return Parameter(
        plain["name"], tuple(plain["shape"]), plain["dtype"], plain["trainable"], tuple(parts),
        plain["same_as"],
    )  # fmt: skip


def _plain_step(step: Step) -> list[Any]:
    match step:
        case Permute(axes):
            return [_PERMUTE, list(axes)]
        case Reshape(before, after):
            return [_RESHAPE, list(before), list(after)]
        case Reorder(dim, order):
            return [_REORDER, dim, list(order)]


def _step(plain: Sequence[Any]) -> Step:
    kind, *rest = plain
    if kind == _PERMUTE:
        return Permute(tuple(rest[0]))
    if kind == _RESHAPE:
        return Reshape(tuple(rest[0]), tuple(rest[1]))
    return Reorder(int(rest[0]), tuple(rest[1]))
