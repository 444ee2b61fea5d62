"""What a rank tells of itself as it goes, at next to no cost: the watcher looks at it when a wait
has become long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import final


@final
class _Way:
    """How far this process has come. steps: training steps. thread: the one that makes them."""

    __slots__ = ("steps", "thread")

    def __init__(self) -> None:
        self.steps, self.thread = 0, threading.main_thread().ident or 0


way = _Way()


def stepped() -> None:
    """A training step begins: every rank makes as many, in step."""
    way.steps += 1
    way.thread = get_ident()


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A wait that is under way. call: what for, in words. ranks: gives those waited for, of the
    job; None where the wait does not know."""

    call: str
    ranks: Callable[[], Sequence[int]] | None = None


_waits: dict[Waiting, None] = {}


@contextmanager
def waiting(call: str, ranks: Callable[[], Sequence[int]] | None = None) -> Iterator[None]:
    """Around a wait that ends by itself when its patience does. To be entered late: once it is
    seen that others have not come."""
    wait = Waiting(call, ranks)
    _waits[wait] = None
    try:
        yield
    finally:
        del _waits[wait]


def longest_wait() -> Waiting | None:
    """The wait that began first, of those under way."""
    return next(iter(list(_waits)), None)


_inside: dict[str, str] = {}
_pooled: set[str] = set()


def waits_inside(calls: Mapping[str, str], *, pooled: bool = False) -> None:
    """A framework waits for other ranks inside calls of these files, where nobody can tell but by
    the stack. calls: file, or folder with a slash at its end -> the call in words; "" for the
    function's own name. pooled: whether it computes there too, in threads of its own."""
    _inside.update(calls)
    if pooled:
        _pooled.update(calls)


def computes_elsewhere(file: str) -> bool:
    """Whether a thread that stands still in this file says nothing of what others compute."""
    return file in _pooled


def call_in(file: str, function: str) -> str:
    """The call, where this function of this file may wait for other ranks; else empty."""
    words = _inside.get(file)
    if words is None:
        folders = (
            name for place, name in _inside.items() if place[-1] == "/" and file.startswith(place)
        )
        words = next(folders, None)
    return "" if words is None else words or f"{function}()"
