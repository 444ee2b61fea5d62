"""Plain values as JSON, and back as what they were: JSON alone forgets tuples, counters and keys
that are no text."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dream._errors import Unsupported

_MARK = "!"
"""What a key begins with that says which kind of value follows."""
_PLAIN = (bool, int, str)
_NUMBERS = "biufc"
_others: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {}


def keep_too(
    kind: str, of: type[Any], plain: Callable[[Any], Any], made: Callable[[Any], Any]
) -> None:
    """Have values of a framework's type be plain ones, too. plain: says one in plain values, or
    raises Unsupported; made: makes it of them."""
    _others[_MARK + kind] = of, plain
    _MADE[_MARK + kind] = lambda held: made(from_json(held))


def to_json(value: Any, what: str) -> Any:
    """Return what JSON can hold. what: names the value in the error. Unsupported for what is no
    plain value: an object, a function, a tensor."""
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_MARK + "float": repr(value)}
    if isinstance(value, bytes):
        return {_MARK + "bytes": base64.b64encode(value).decode()}
    if isinstance(value, Counter):
        return {_MARK + "counter": _items(value, what)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith(_MARK) for key in value):
            return {key: to_json(each, f"{what}[{key!r}]") for key, each in value.items()}
        return {_MARK + "items": _items(value, what)}
    if isinstance(value, tuple):
        return {_MARK + "tuple": _list(value, what)}
    if isinstance(value, list):
        return _list(value, what)
    for mark, (of, plain) in _others.items():
        if isinstance(value, of):
            return {mark: to_json(plain(value), what)}
    if type(value).__name__ == "ndarray" and value.dtype.kind in _NUMBERS:
        told = value.dtype.str, [*value.shape], value.tobytes()
        return {_MARK + "array": to_json(told, what)}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of NumPy's
        return to_json(value.item(), what)
    raise Unsupported(
        f"A checkpoint can only store plain values here. Received: {what}, a "
        f"{type(value).__name__}. Use numbers, strings, or lists or dicts of them."
    )


def _list(values: Any, what: str) -> list[Any]:
    return [to_json(each, f"{what}[{place}]") for place, each in enumerate(values)]


def _items(value: Mapping[Any, Any], what: str) -> list[Any]:
    return [[to_json(k, what), to_json(v, f"{what}[{k!r}]")] for k, v in value.items()]


def from_json(value: Any) -> Any:
    """Return the value that `to_json` was given."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, held), *_ = value.items()
        made = _MADE.get(key)
        if made is not None:
            return made(held)
    return {key: from_json(each) for key, each in value.items()}


def _dict(items: list[Any]) -> dict[Any, Any]:
    return {from_json(key): from_json(each) for key, each in items}


def _array(told: Any) -> Any:
    import numpy as np  # whoever only looks at a checkpoint need not have it

    kind, shape, whole = from_json(told)
    return np.frombuffer(bytearray(whole), kind).reshape(shape)


_MADE: dict[str, Callable[[Any], Any]] = {
    _MARK + "float": float,
    _MARK + "array": _array,
    _MARK + "bytes": base64.b64decode,
    _MARK + "counter": lambda items: Counter(_dict(items)),
    _MARK + "items": _dict,
    _MARK + "tuple": lambda held: tuple(from_json(each) for each in held),
}
