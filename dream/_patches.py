"""Attributes of other people's classes and modules, replaced for a while, and where else these are
bound; and values of context variables, for as long as a block lasts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any, Self, TypeVar, final

_INHERITED: Any = object()
"""Stands for what an owner had of a base class's."""


@final
class Patches:
    """A list of replacements, applied and taken back together; at the latest when a block of it
    ends."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.restore()

    def replace(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner).get(name, _INHERITED)  # as it lies there, a classmethod unbound
        self._originals.append((owner, name, own))
        setattr(owner, name, value)

    def replace_bound(self, owner: Any, name: str, value: Any, home: str) -> None:
        """Replace a function also where the script and its libraries have it by name, as `bound_to`
        finds them. home: the package it is from."""
        original = getattr(owner, name)
        for place, known_as in ((owner, name), *bound_to([original], home)[id(original)]):
            self.replace(place, known_as, value)

    def leave(self, owner: Any, name: str) -> None:
        """Have what stands there now stay."""
        self._originals = [
            each for each in self._originals if each[0] is not owner or each[1] != name
        ]

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """The originals are back inside, and what stood there stands there again after it."""
        stood = {(id(owner), name): (owner, name) for owner, name, _ in self._originals}
        values = [(*place, vars(place[0])[place[1]]) for place in stood.values()]
        self.restore()
        try:
            yield
        finally:
            for owner, name, value in values:
                self.replace(owner, name, value)

    def restore(self) -> None:
        """Put the originals back, last first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def first_use(places: Iterable[tuple[Any, str]], found: Callable[[], None]) -> Callable[[], None]:
    """Have `found` called before one of the functions runs for the first time. Returns what ends
    that. places: (owner, name) of each."""
    patches = Patches()

    def watched(owner: Any, name: str) -> Callable[..., Any]:
        own = getattr(owner, name)

        @wraps(own)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            patches.restore()
            found()
            return getattr(owner, name)(*args, **kwargs)

        vars(wrapped)["__signature__"] = signature(own)  # Keras looks for its `self`
        return wrapped

    for owner, name in places:
        patches.replace(owner, name, watched(owner, name))
    return patches.restore


T = TypeVar("T")
Bound = list[tuple[ModuleType, str]]


_PYTHONS = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120


def is_pythons(name: str, module: object) -> bool:
    """Return whether a module is Python's own, and not a script's of the same name."""
    if name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = getattr(module, "__file__", None)
    return file is None or str(file).startswith(_PYTHONS)


def bound_to(functions: Iterable[Any], home: str) -> dict[int, Bound]:
    """Return the (module, name) that stand for each function, by the function's id, in the script
    and its libraries. home: the package they are from, which keeps its own; Python's has none.

    All of them in one pass, and by their types first: there are some hundred thousand names. (An
    `id` of each would be told to whoever audits.)
    """
    sought = {function: id(function) for function in functions}
    found: dict[int, Bound] = {key: [] for key in sought.values()}
    kinds = {type(function) for function in sought}
    for package, module in [*sys.modules.items()]:
        if not isinstance(module, ModuleType) or package.partition(".")[0] in (home, "dream"):
            continue
        if is_pythons(package, module):
            continue
        names = vars(module).copy()  # another thread may import meanwhile
        for name, value in names.items():
            if type(value) in kinds and value in sought:
                found[sought[value]].append((module, name))  # maybe another object, equal to it
    return found


@contextmanager
def value_set(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside, a context variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def in_this_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which finds context variables as they are here wherever it is called:
    also in a thread of its own, as that of a backward pass on a GPU."""
    context = copy_context()

    def call(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(function, *args, **kwargs)  # a copy: it may call itself

    return call
