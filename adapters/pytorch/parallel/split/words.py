"""What the ranks of a pipeline tell one another of tensors: what they look like, in the structure
that they come in."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES, is_namedtuple_instance

from dream import _plain
from dream._plain import Codec, name_of
from dream.adapters.pytorch.parallel.split.schedules import Shape


def packed(value: object) -> bytes:
    """Shapes and plain values, in any structure that torch knows."""
    return _plain.pack(value, _STRUCTURES)


def unpacked(data: bytes) -> Any:
    return _plain.unpack(data, _STRUCTURES)


def _coded(value: object) -> tuple[str, object] | None:
    if isinstance(value, Shape):
        dtype = str(value.dtype).removeprefix("torch.")
        return "shape", (tuple(value.shape), dtype, value.requires_grad)
    if is_namedtuple_instance(value):
        assert isinstance(value, tuple)
        return "named", (name_of(type(value)), list(value))
    if type(value) in SUPPORTED_NODES:
        children, context = SUPPORTED_NODES[type(value)].flatten_fn(value)
        return "node", (name_of(type(value)), list(children), context)
    return None


def _decoded(tag: str, value: Any) -> object:
    if tag == "shape":
        shape, dtype, requires_grad = value
        return Shape(tuple(shape), _dtype(dtype), bool(requires_grad))
    if tag == "named":
        name, children = value
        return _known(name, tuple.__subclasses__())(*children)
    if tag == "node":
        name, children, context = value
        node = SUPPORTED_NODES[_known(name, list(SUPPORTED_NODES))]
        return node.unflatten_fn(children, context)
    raise ValueError("an unknown structure")


def _known(name: object, kinds: list[type[Any]]) -> type[Any]:
    """Of the classes that this rank has too."""
    found = [kind for kind in kinds if name_of(kind) == name]
    if not found:
        raise ValueError(f"{name!r:.100}, which this rank does not have")
    return found[-1]


def _dtype(name: object) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("no dtype")
    return dtype


_STRUCTURES = Codec(_coded, _decoded)
