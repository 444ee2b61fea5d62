"""The words that frames carry beside their numbers, checked as they are read: who knows the way in
may still send anything."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import prod
from typing import Any, NoReturn, Self, TypeGuard

from dream._errors import DreamError, named, public_name
from dream._plain import Garbled, pack, unpack

Layout = tuple[tuple[int, tuple[int, ...]], ...]
"""A shard's parameters: the place of each in the model, and its shape."""
_ITEM_SIZES = {"<f4": 4, "<f8": 8}


@dataclass(frozen=True, slots=True)
class Registration:
    """What REGISTER says. recipe: for the server's `Owner`; rest: whatever else of a model starts
    as rank 0's."""

    layout: Layout
    dtype: str
    recipe: bytes
    rest: bytes

    @property
    def nbytes(self) -> int:
        """Of the parameters."""
        return sum(prod(shape) for _, shape in self.layout) * _ITEM_SIZES[self.dtype]

    def packed(self) -> bytes:
        return pack((self.layout, self.dtype, self.recipe, self.rest))

    @classmethod
    def of(cls, text: bytes) -> Self:
        said = _parts(text, 4)
        layout, dtype, recipe, rest = said
        fits = _is_layout(layout) and isinstance(dtype, str) and dtype in _ITEM_SIZES
        if not fits or not isinstance(recipe, bytes) or not isinstance(rest, bytes):
            garbled("a registration")
        return cls(*said)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What PUSH says beside its numbers. also: leases that the gradient is of, beside the last;
    settings, present: as in `messages.Push`."""

    also: tuple[int, ...] = ()
    settings: bytes | None = None
    present: bytes = b""

    def packed(self) -> bytes:
        return b"" if self == Pushed() else pack(astuple(self))

    @classmethod
    def of(cls, text: bytes, parameters: int) -> Self:
        """parameters: how many the server holds."""
        if not text:
            return cls()
        also, settings, present = said = _parts(text, 3)
        if not _are_counts(also) or not (settings is None or isinstance(settings, bytes)):
            garbled("a push")
        if not isinstance(present, bytes) or len(present) not in (0, parameters):
            garbled("a push")
        return cls(*said)


@dataclass(frozen=True, slots=True)
class Returned:
    """What SETTLE and RELEASE say: leases of a loader's epoch."""

    key: tuple[int, int]
    leases: tuple[int, ...]

    def packed(self) -> bytes:
        return pack(astuple(self))

    @classmethod
    def of(cls, text: bytes) -> Self:
        key, leases = said = _parts(text, 2)
        if not _are_counts(key) or len(key) != 2 or not _are_counts(leases):
            garbled("leases")
        return cls(*said)


def packed_error(error: DreamError) -> bytes:
    return pack((public_name(error), str(error)))


def error_of(text: bytes) -> DreamError:
    """An error as it was raised elsewhere."""
    name, words = _parts(text, 2)
    return named(str(name), str(words))


def garbled(what: str) -> NoReturn:
    raise Garbled(
        f"This is no frame of a worker or server. Received: what is not {what}. Start every rank "
        "with the same version of dream."
    )


def _parts(text: bytes, count: int) -> tuple[Any, ...]:
    said = unpack(text)
    if not isinstance(said, tuple) or len(said) != count:
        garbled(f"{count} words")
    return said


def _is_layout(said: object) -> TypeGuard[Layout]:
    return isinstance(said, tuple) and all(
        isinstance(entry, tuple)
        and len(entry) == 2
        and _are_counts(entry[:1])
        and _are_counts(entry[1])
        for entry in said
    )


def _are_counts(said: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(said, tuple) and all(type(x) is int and x >= 0 for x in said)
