"""Values of a script's variables as plain ones that a checkpoint holds, and made again of those."""

from __future__ import annotations

import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dream.adapters.pytorch.private import version_of

OPAQUE = ("opaque",)
"""Stands for what is not made of numbers, text, small arrays and containers of them."""

_LEAVES = 20_000
_ELEMENTS = 4096
_OF_TENSORS = 256
_LARGE = 1 << 24
_ATOMS = (bool, int, float, str, bytes)
_SEQUENCES: dict[type[Any], str] = {list: "list", tuple: "tuple", set: "set", deque: "deque"}
_DICTS: tuple[type[Any], ...] = (dict, OrderedDict, defaultdict)


class _NotPlain(Exception):
    pass


def told(value: Any) -> Any:
    """Return a value in plain words; OPAQUE where it has none, or too many."""
    left = [_LEAVES]
    try:
        return _told(value, left)
    except _NotPlain:
        return OPAQUE


def _told(value: Any, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise _NotPlain
    if value is None or type(value) in _ATOMS:
        return ("value", value)
    kind = type(value)
    if kind is torch.Tensor and value.layout is torch.strided and value.numel() <= _OF_TENSORS:
        flat = value.detach().cpu().contiguous().reshape(-1)
        return ("tensor", str(value.dtype), tuple(value.shape), _bytes(flat), str(value.device))
    if isinstance(value, (np.ndarray, np.generic)) and value.size <= _ELEMENTS:
        if value.dtype.hasobject:
            raise _NotPlain
        scalar = isinstance(value, np.generic)
        return ("array", value.dtype.str, tuple(value.shape), value.tobytes(), scalar)
    if kind in _SEQUENCES:
        if len(value) > left[0]:
            raise _NotPlain
        inner = [_told(each, left) for each in value]
        return (_SEQUENCES[kind], sorted(inner, key=repr) if kind is set else inner)
    if kind in _DICTS:
        if len(value) > left[0]:
            raise _NotPlain
        return ("dict", [(_told(k, left), _told(each, left)) for k, each in value.items()])
    raise _NotPlain


def _bytes(flat: torch.Tensor) -> bytes:
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def made(said: Any, here: Any) -> Any:
    """Return the value of such words. here: what is there now: a list or a dict is filled anew, as
    others may hold it too."""
    kind, *rest = said
    return _MADE[kind](rest, here)


def _tensor(rest: Any, _: Any) -> Any:
    dtype, shape, data, device = rest
    kind = getattr(torch, dtype.removeprefix("torch."))
    flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.reshape(shape).to(device if device == "cpu" or torch.cuda.is_available() else "cpu")


def _array(rest: Any, here: Any) -> Any:
    dtype, shape, data, scalar = rest
    array = np.frombuffer(data, dtype).reshape(shape).copy()
    if scalar:
        return array[()]
    if type(here) is np.ndarray and (here.shape, here.dtype) == (array.shape, array.dtype):
        here[...] = array
        return here
    return array


def _filled(kind: type[Any], fill: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def make(rest: Any, here: Any) -> Any:
        held = here if isinstance(here, kind) else kind()
        values = [*rest[0]]
        held.clear()
        fill(held, values)
        return held

    return make


def _sequence(values: Any) -> list[Any]:
    return [made(each, None) for each in values]


_MADE: dict[str, Callable[[Any, Any], Any]] = {
    "value": lambda rest, _: rest[0],
    "tensor": _tensor,
    "array": _array,
    "tuple": lambda rest, _: tuple(_sequence(rest[0])),
    "list": _filled(list, lambda held, values: held.extend(_sequence(values))),
    "deque": _filled(deque, lambda held, values: held.extend(_sequence(values))),
    "set": _filled(set, lambda held, values: held.update(_sequence(values))),
    "dict": _filled(
        dict, lambda held, values: held.update({made(k, None): made(v, None) for k, v in values})
    ),
}


def stamp_of(value: Any) -> Any:
    """Return what differs once an opaque value was changed in place, as far as can be seen."""
    if isinstance(value, torch.nn.Module):
        return None  # what trains of models is looked at by itself
    if isinstance(value, torch.Tensor):
        return version_of(value)
    if isinstance(value, np.ndarray):
        whole = value.nbytes <= _LARGE and not value.dtype.hasobject
        return zlib.crc32(value.tobytes()) if whole else None
    if isinstance(value, dict):
        return len(value), *(_member(each) for each in [*value.values()][:_ELEMENTS])
    if isinstance(value, (list, tuple, deque)):
        return len(value), *(_member(each) for each in [*value][:_ELEMENTS])
    return None


def _member(value: Any) -> Any:
    return id(value), stamp_of(value) if isinstance(value, torch.Tensor) else None
