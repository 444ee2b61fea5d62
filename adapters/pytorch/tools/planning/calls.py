"""Put operations in words, so that another process can make the same call on tensors of its own
and time it there.

Each is made again and again for a few milliseconds. What it needs was used just now, and is in the
caches as far as it fits: in a step too most of it was made just before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

_ATEN = "aten::"
_TENSOR = "tensor"
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


class _Foreign(Exception):
    """An argument that has no words here."""


def described(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Describe a call, the same for calls that take as long; "" for what cannot be made
    elsewhere."""
    if not func._schema.name.startswith(_ATEN):
        return ""
    try:
        said = [func._schema.name, func._overloadname, _words(args), _words(dict(kwargs))]
    except _Foreign:
        return ""
    return json.dumps(said)


def rebuilt(call: str) -> tuple[Any, list[Any], dict[str, Any]]:
    """(operation, arguments, named ones). Numbers are of any values, whole ones are 0."""
    name, overload, args, kwargs = json.loads(call)
    packet = getattr(torch.ops.aten, name.removeprefix(_ATEN))
    return getattr(packet, overload or "default"), _values(args), _values(kwargs)


def size_of(call: str) -> int:
    """Return the bytes of the tensors that are given."""
    return _bytes_of(json.loads(call)[2:])


def _words(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise _Foreign
        kind = str(value.dtype).removeprefix("torch.")
        return {_TENSOR: [kind, [*map(int, value.shape)], [*map(int, value.stride())]]}
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, _CONSTANTS):
        return {"constant": str(value).removeprefix("torch.")}
    if isinstance(value, int | torch.SymInt):
        return int(value)
    if isinstance(value, float):
        return {"float": repr(value)}  # inf among them
    if isinstance(value, list | tuple):
        return [_words(part) for part in value]
    if isinstance(value, dict):
        return {"named": {key: _words(part) for key, part in value.items()}}
    raise _Foreign


def _values(said: Any) -> Any:
    if isinstance(said, list):
        return [_values(part) for part in said]
    if not isinstance(said, dict):
        return said
    ((kind, value),) = said.items()
    if kind == _TENSOR:
        return _tensor(*value)
    if kind == "named":
        return {key: _values(part) for key, part in value.items()}
    if kind == "device":
        return torch.device(value)
    return float(value) if kind == "float" else getattr(torch, value)


def _tensor(kind: str, shape: list[int], stride: list[int]) -> torch.Tensor:
    dtype = getattr(torch, kind)
    needed = _extent(shape, stride)
    flat = (
        torch.rand(needed).to(dtype)
        if dtype.is_floating_point
        else torch.zeros(needed, dtype=dtype)
    )
    return flat.as_strided(shape, stride)


def _extent(shape: list[int], stride: list[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _bytes_of(said: Any) -> int:
    if isinstance(said, list):
        return sum(map(_bytes_of, said))
    if not isinstance(said, dict):
        return 0
    ((kind, value),) = said.items()
    if kind == _TENSOR:
        itemsize: int = getattr(torch, value[0]).itemsize
        return _extent(value[1], value[2]) * itemsize
    return _bytes_of(list(value.values())) if kind == "named" else 0


_BLOCK, _BLOCKS = 1e-3, 7
"""Seconds of a block, at least, and how many the quickest is of: two threads that wait for each
other are held up for long by whatever else runs."""
_MOST = 1 << 30
"""Bytes of tensors that one may be given."""


@torch.no_grad()
def time_calls(calls: Sequence[str]) -> list[float | None]:
    """Of each; None for what cannot be made here."""
    return [_seconds_of(call) for call in calls]


def _seconds_of(call: str) -> float | None:
    if not call or size_of(call) > _MOST:
        return None
    operation, args, named = rebuilt(call)

    def again() -> None:
        operation(*args, **named)

    try:
        again()
    except (RuntimeError, IndexError, ValueError):  # values that it does not take
        return None
    calls = max(1, int(_BLOCK / max(1e-7, _timed(again, 1))))
    return min(_timed(again, calls) for _ in range(_BLOCKS))


def _timed(call: Callable[[], None], times: int) -> float:
    begin = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - begin) / times
