"""Values as bytes and back, for whatever comes over a socket or from a file: a tree in JSON, then
buffers. Reading makes values and nothing else: no class is looked up, no code is run.

None, bool, int, float, str, bytes, list, tuple, dict, and NumPy's arrays and scalars travel; what
else there is, a framework's tensors say, takes a `Codec`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, final

from dream._errors import ConfigurationError, DreamError

if TYPE_CHECKING:
    import numpy as np

_MAGIC = b"drm1"
_HEAD = struct.Struct("<4sQ")
_DEEPEST = 64
_MOST_BITS = 8192
"""Of an integer: Python reads no longer decimals than it would have itself write."""
_DTYPE = re.compile(r"[<>|=]?[b-zA-Z][0-9]{0,9}(\[[0-9]{0,9}[a-zA-Z]{1,9}\])?")
"""Not NumPy's old "a" for "S", which it no longer writes, and warns of."""
_KINDS = "biufcSUMm"
"""Kinds of NumPy's dtypes whose arrays are their bytes."""
_EXTRA = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")
"""dtypes that the package ml_dtypes adds to NumPy."""


class Garbled(DreamError, ValueError):
    """Bytes that no `pack` has made."""


class Unpackable(ConfigurationError):
    """A value that cannot travel. kind: its type, in words."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            "This value cannot be sent to other ranks. Received: something of type "
            f"{kind}. Send None, bool, int, float, str, bytes, lists, tuples and dicts of them, or "
            "NumPy arrays."
        )
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Codec:
    """Values of further types. pack: (tag, plain value), or None for what it does not know.
    unpack: the value of a tag; it raises ValueError or TypeError for one that cannot be."""

    pack: Callable[[object], tuple[str, object] | None]
    unpack: Callable[[str, Any], object]


def pack(value: object, codec: Codec | None = None) -> bytes:
    """`Unpackable` names the type of what cannot travel."""
    writer = _Writer(codec)
    text = json.dumps(writer.tree(value, 0), separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"".join((_HEAD.pack(_MAGIC, len(text)), text, *writer.buffers))


def unpack(data: bytes | bytearray | memoryview, codec: Codec | None = None) -> Any:
    """What was packed; arrays are copies. `Garbled` for anything else, never another error."""
    view = memoryview(data).cast("B")
    try:
        magic, length = _HEAD.unpack_from(view)
        if magic != _MAGIC or length > len(view) - _HEAD.size:
            raise ValueError("no head")
        text = bytes(view[_HEAD.size : _HEAD.size + length]).decode("utf-8", "surrogatepass")
        reader = _Reader(view[_HEAD.size + length :], codec)
        value = reader.value(json.loads(text), 0)
        if reader.left:
            raise ValueError("bytes left over")
    except _WRONG as error:
        raise Garbled(
            f"The data received is not a dream message. Received: {len(view)} bytes ({error}). "
            "Start every rank with the same version of dream."
        ) from error
    return value


_WRONG = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error,
          MemoryError)  # fmt: skip


@final
class _Writer:
    """Takes a value apart into a JSON tree and the buffers beside it.

    buffers: what follows the tree, in its order.
    """

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec
        self.buffers: list[bytes] = []

    def tree(self, value: object, depth: int) -> Any:
        if depth > _DEEPEST:
            raise Unpackable(f"{type(value).__name__}, {_DEEPEST} levels deep")
        if type(value) is int and value.bit_length() > _MOST_BITS:
            raise Unpackable(f"int, {value.bit_length()} bits long")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is list:
            return [self.tree(item, depth + 1) for item in value]
        if type(value) is tuple:
            return {"t": [self.tree(item, depth + 1) for item in value]}
        if type(value) is dict:
            return {"d": [[self.tree(x, depth + 1) for x in pair] for pair in value.items()]}
        if type(value) is bytes:
            self.buffers.append(value)
            return {"b": len(value)}
        return self._array(value) or self._coded(value, depth)

    def _array(self, value: object) -> Any:
        if type(value).__module__.partition(".")[0] not in ("numpy", "ml_dtypes"):
            return None
        import numpy as np

        if not isinstance(value, (np.ndarray, np.generic)) or not _travels(value.dtype):
            return None
        if type(value) is not np.ndarray and isinstance(value, np.ndarray):
            return None
        self.buffers.append(value.tobytes())
        name = value.dtype.name if value.dtype.name in _EXTRA else value.dtype.str
        return {"a" if isinstance(value, np.ndarray) else "n": [name, list(value.shape)]}

    def _coded(self, value: object, depth: int) -> Any:
        coded = None if self._codec is None else self._codec.pack(value)
        if coded is None:
            raise Unpackable(_named(type(value)))
        return {"x": [coded[0], self.tree(coded[1], depth + 1)]}


@final
class _Reader:
    def __init__(self, buffers: memoryview, codec: Codec | None) -> None:
        self._buffers, self._at, self._codec = buffers, 0, codec

    @property
    def left(self) -> int:
        return len(self._buffers) - self._at

    def value(self, tree: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("too deep")
        if isinstance(tree, list):
            return [self.value(item, depth + 1) for item in tree]
        if not isinstance(tree, dict):
            return tree
        ((kind, said),) = tree.items()
        if kind == "t":
            return tuple(self.value(item, depth + 1) for item in _listed(said))
        if kind == "d":
            return {
                self.value(key, depth + 1): self.value(item, depth + 1)
                for key, item in map(_listed, _listed(said))
            }
        if kind == "b":
            return bytes(self._take(_size(said)))
        if kind in ("a", "n"):
            return self._array(*_listed(said), scalar=kind == "n")
        if kind == "x" and self._codec is not None:
            tag, inner = _listed(said)
            return self._codec.unpack(str(tag), self.value(inner, depth + 1))
        raise ValueError("an unknown kind")

    def _array(self, name: Any, shape: Any, *, scalar: bool) -> Any:
        import numpy as np

        dtype = _dtype(name)
        sizes = tuple(_size(size) for size in _listed(shape))
        raw = self._take(prod(sizes) * dtype.itemsize)
        array = np.frombuffer(bytearray(raw), dtype).reshape(sizes)
        return array[()] if scalar else array

    def _take(self, size: int) -> memoryview:
        """Only what is there: nothing is made in the size that the bytes merely claim."""
        if size > self.left:
            raise ValueError("cut short")
        self._at += size
        return self._buffers[self._at - size : self._at]


def _dtype(name: object) -> np.dtype[Any]:
    import numpy as np

    if name in _EXTRA:
        try:
            import ml_dtypes
        except ImportError:
            raise ValueError(f"{name}, which takes the package ml_dtypes") from None
        extra: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(name)))
        return extra
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ValueError("an unknown dtype")
    dtype = np.dtype(name)
    if not dtype.itemsize or not _travels(dtype):
        raise ValueError("an unknown dtype")
    return dtype


def _travels(dtype: Any) -> bool:
    return dtype.name in _EXTRA or (dtype.kind in _KINDS and not dtype.hasobject)


def _listed(said: Any) -> list[Any]:
    if not isinstance(said, list):
        raise TypeError("no list")
    return said


def _size(said: Any) -> int:
    if type(said) is not int or said < 0:
        raise ValueError("no size")
    return said


def _named(kind: type[Any]) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def name_of(kind: type[Any]) -> str:
    """A class by name, for those who look it up among classes that they have."""
    return f"{kind.__module__}:{kind.__qualname__}"
