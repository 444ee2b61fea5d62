"""A script's own variables around a loop: those that are plain values are kept and set again; of
what is not plain it is told whether it has changed."""

from __future__ import annotations

import json
import sys
import sysconfig
import warnings
import zlib
from argparse import Namespace
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CellType, FrameType, FunctionType, GeneratorType, ModuleType, SimpleNamespace
from typing import Any, final

import numpy as np

from dream._errors import Unsupported
from dream.checkpoint.storage.words import to_json
from dream.checkpoint.untouched.trained import Trained

_DEPTH = 3
"""Of a script's objects within its objects."""
_MOST = 1 << 24
"""Bytes of one value, about."""
_FEW = 1000
_CONTAINERS = (list, dict, set, deque)
_EXACT = {list, dict, tuple, Counter, OrderedDict}
"""Containers that come back as what they were, or as good as."""
_SPACES = (Namespace, SimpleNamespace)
_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve())
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN = __name__.partition(".")[0]


@dataclass(frozen=True)
class Variables:
    """The variables that a loop sees.

    own: of the loop's function, which one item may leave to the next. globals: of the script, which
    its functions assign. held: by path, what is changed in place: containers, and attributes of
    objects of the script's own classes. anew: those of all these that are other objects than as the
    loop began. changed: those that are not plain, and not what they were.
    """

    own: Mapping[str, Any] = field(default_factory=dict)
    globals: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, Any] = field(default_factory=dict)
    anew: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@final
class VariablesOfALoop:
    """The variables that a training loop assigns, read for a checkpoint and put back from one.

    names: what its body assigns. carried: those of them that one run of it may leave to the
    next. declared: what functions of the script declare `global`. trained: knows its
    framework's tensors, and what is kept otherwise.
    """

    def __init__(
        self, frame: FrameType, names: Iterable[str], carried: Iterable[str],
        declared: Iterable[str], trained: Trained,
    ) -> None:  # fmt: skip
        self._names, self._carried, self._declared = set(names), set(carried), set(declared)
        self._kinds, self._parted, self._trained = trained.kinds, trained.parted, trained
        self._there = {*frame.f_locals, *frame.f_globals, *_own_modules()}
        self._were = self._all(frame)  # held, so that no other object gets the number of one
        self._inner = [*map(_elements, self._were.values())]
        self._first = {path: self._stamp(value) for path, value in self._were.items()}

    def read(self, frame: FrameType) -> Variables:
        """Return what is to be kept now."""
        own, in_globals = self._assigned(frame)
        plain = {name: value for name, value in own.items() if is_plain(value)}
        plain_globals = {name: value for name, value in in_globals.items() if is_plain(value)}
        odd = [
            name
            for name, value in (*own.items(), *in_globals.items())
            if not is_plain(value) and self._first.get(name) != self._stamp(value)
        ]
        kept = {*plain, *plain_globals}
        held: dict[str, Any] = {}
        for path, value in self._cells(frame):
            root = path.partition(".")[0]
            made_anew = root in self._names - self._carried
            if made_anew or path in kept or self._first.get(path) == self._stamp(value):
                continue
            if is_plain(value) and root in self._there:
                held[path] = value
            else:
                odd.append(path)
        every = held | plain_globals | plain
        anew = [n for n, x in every.items() if self._is_anew(n, x)]
        odd += [n for n in every if not _comes_back(every[n], top=n not in anew)]
        odd += [f"{n} (held twice)" for n in self._shared(every, anew)]
        return Variables(plain, plain_globals, held, tuple(anew), tuple(dict.fromkeys(odd)))

    def _is_anew(self, path: str, value: Any) -> bool:
        return self._changes_in_place(value) and self._were.get(path) is not value

    def _shared(self, every: Mapping[str, Any], anew: Iterable[str]) -> Iterator[str]:
        """Return those that hold what something else does, too, and would not once set again."""
        is_live, seen = self._trained.live(), dict[int, bool]()
        for path, value in every.items():
            for each in _mutable(value):
                apart = each is not value or path in anew
                if is_live(each) or (id(each) in seen and (apart or seen[id(each)])):
                    yield path
                seen[id(each)] = apart or seen.get(id(each), False)

    def set_again(self, frame: FrameType, kept: Variables) -> dict[str, Any]:
        """Set what is changed in place, and globals; return what the loop's function has to assign
        by itself."""
        self._anew = {*kept.anew}
        for path, value in kept.held.items():
            self._set(frame, path, value)
        here, shared = frame.f_locals, frame.f_globals
        for name, value in kept.globals.items():
            shared[name] = self._as_it_was(name, shared.get(name), value)
        own = {n: self._as_it_was(n, here.get(n), value) for n, value in kept.own.items()}
        if here is not shared:
            return own
        shared.update(own)
        return {}

    def _as_it_was(self, path: str, before: Any, value: Any) -> Any:
        return value if path in self._anew else self._in_place(before, value)

    def _set(self, frame: FrameType, path: str, value: Any) -> None:
        name, *attributes = path.split(".")
        every = _own_modules() | frame.f_globals | frame.f_locals
        if not attributes:
            self._in_place(every[name], value)
            return
        held = every[name]
        for attribute in attributes[:-1]:
            held = {**_parts(held), **self._trained.within(held)}[attribute]
        before = _parts(held).get(attributes[-1])
        _put(held, attributes[-1], self._as_it_was(path, before, value))

    def _assigned(self, frame: FrameType) -> tuple[dict[str, Any], dict[str, Any]]:
        own = {name: x for name, x in frame.f_locals.items() if name in self._carried}
        shared = {name: x for name, x in frame.f_globals.items() if name in self._declared}
        return own, shared

    def _all(self, frame: FrameType) -> dict[str, Any]:
        own, shared = self._assigned(frame)
        return shared | own | dict(self._cells(frame))

    def _cells(self, frame: FrameType) -> Iterator[tuple[str, Any]]:
        """What can be changed in place, by path from a variable of the function or the script."""
        seen: set[int] = set()
        for variables in (frame.f_locals, frame.f_globals, _own_modules()):
            for name, value in [*variables.items()]:
                if not name.startswith("__"):
                    yield from self._within(name, value, seen, _DEPTH)

    def _stamp(self, value: Any) -> Any:
        """Return what tells whether it is what it was: itself, or the objects that it is of."""
        if isinstance(value, np.ndarray):
            step = 1 + value.nbytes // _MOST
            seen = value.reshape(-1)[::step] if value.dtype.kind in "biufc" else np.zeros(0)
            return id(value), value.shape, zlib.crc32(np.ascontiguousarray(seen).tobytes())
        if (version := self._trained.version(value)) is not None:
            return id(value), version
        text = _text(value)
        if text is not None:
            return text
        if isinstance(value, _CONTAINERS):
            return len(value), [*map(id, _elements(value))]
        return id(value), _place(value)

    def _in_place(self, before: Any, value: Any) -> Any:
        """Have what others may hold be as it was; a number is set."""
        if isinstance(before, np.ndarray) and np.shape(value) == before.shape:
            before[...] = value
        elif isinstance(before, list) and type(before) is type(value):
            before[:] = value
        elif isinstance(before, MutableMapping) and isinstance(value, Mapping):
            before.clear()
            before.update(value)
        elif self._trained.version(before) is None or not self._trained.write(before, value):
            return value
        return before

    def _changes_in_place(self, value: Any) -> bool:
        tensor = self._trained.version(value) is not None
        return tensor or isinstance(value, (*_CONTAINERS, np.ndarray))

    def _within(
        self, path: str, value: Any, seen: set[int], depth: int
    ) -> Iterator[tuple[str, Any]]:
        if id(value) in seen:
            return
        seen.add(id(value))
        kept = isinstance(value, self._kinds)
        if not kept and (self._changes_in_place(value) or _place(value) is not None):
            yield path, value
            if not isinstance(value, _CONTAINERS) or is_plain(value):
                return
        for name, inner in self._trained.within(value).items():
            yield from self._within(f"{path}.{name}", inner, seen, depth)
        if depth and _is_walked(value) and (not kept or isinstance(value, self._parted)):
            for attribute, inner in [*_parts(value).items()]:
                if not (kept and hasattr(self._trained.bare, attribute)):
                    yield from self._of(f"{path}.{attribute}", inner, seen, depth)

    def _of(self, path: str, inner: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
        """What an attribute is, or has in it."""
        kept = isinstance(inner, self._kinds)
        if kept:
            yield path, inner
        if kept or _is_walked(inner) or self._changes_in_place(inner):
            yield from self._within(path, inner, seen, depth - 1)
        else:
            yield path, inner


def is_plain(value: Any) -> bool:
    """Whether a checkpoint keeps it as it is."""
    return _text(value) is not None


def _text(value: Any) -> str | None:
    if _bytes(value, 0) > _MOST:
        return None
    try:
        text = json.dumps(to_json(value, ""))
    except (Unsupported, ValueError, RecursionError):
        return None
    return text


def _bytes(value: Any, so_far: int) -> int:
    """Return about how much a value takes, or more than is kept."""
    if isinstance(value, str | bytes):
        return so_far + len(value)
    if not isinstance(value, _CONTAINERS):
        size = getattr(value, "nbytes", 1)
        return so_far + (size if isinstance(size, int) else 1)
    for each in value.values() if isinstance(value, Mapping) else value:
        so_far = _bytes(each, so_far)
        if so_far > _MOST:
            break
    return so_far


def _comes_back(value: Any, *, top: bool) -> bool:
    """Whether it is of its type again. top: it is written into, and not made."""
    if isinstance(value, (Mapping, list, tuple)):
        if type(value) not in _EXACT and not top:
            return False
        items = value.values() if isinstance(value, Mapping) else value
        return all(_comes_back(each, top=False) for each in items)
    return True


def _mutable(value: Any) -> Iterator[Any]:
    """It, and what it holds, of what changes in place."""
    if isinstance(value, (*_CONTAINERS, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _mutable(each)
    if not isinstance(value, (tuple, str, bytes, int, float, type(None))):
        yield value


def _elements(value: Any) -> list[Any]:
    if not isinstance(value, _CONTAINERS):
        return []
    items: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
    return [each for each, _ in zip(items, range(_FEW), strict=False)]


def _place(value: Any) -> str | None:
    """Return where an iterator stands; None for anything else."""
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return str(frame and (frame.f_lasti, [_text(x) for x in frame.f_locals.values()]))
    if type(value).__module__ not in ("builtins", "itertools") or not hasattr(
        type(value), "__next__"
    ):
        return None
    with warnings.catch_warnings(action="ignore"):  # of 3.12, that 3.14 has it no more
        return _numbers(value.__reduce__()) if sys.version_info < (3, 14) else repr(value)


def _numbers(told: Any) -> str:
    if isinstance(told, tuple):
        return str([_numbers(each) for each in told])
    return str(
        len(told) if isinstance(told, list) else told if isinstance(told, int) else _place(told)
    )


def _is_walked(value: Any) -> bool:
    """Whether it may have state of a script's in it."""
    if isinstance(value, ModuleType):
        return _is_own(value.__name__)
    if isinstance(value, (type, FunctionType)):
        return value.__module__ == "__main__" or _is_own(str(value.__module__))
    return isinstance(value, (*_SPACES, *_CONTAINERS, tuple)) or is_of_a_script(type(value))


def _parts(value: Any) -> dict[str, Any]:
    """Return by name what it has in it."""
    if isinstance(value, (*_CONTAINERS, tuple)):
        if len(value) > _FEW:
            return {}
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return {
            str(key).replace(".", ":"): x
            for key, x in items
            if _is_walked(x) or hasattr(x, "dtype")
        }
    slots = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
    named = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    if isinstance(value, FunctionType):
        named = {n: cell.cell_contents for n, cell in _cells_of(value).items() if _filled(cell)}
    named |= getattr(value, "__dict__", {})
    return {n: x for n, x in named.items() if not n.startswith("__")}


def _cells_of(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _filled(cell: CellType) -> bool:
    return cell != CellType()


def _put(whole: Any, name: str, value: Any) -> None:
    cells = _cells_of(whole) if isinstance(whole, FunctionType) else {}
    if name in cells:
        cells[name].cell_contents = value
    elif isinstance(whole, (type, ModuleType, FunctionType)):
        setattr(whole, name, value)
    elif not isinstance(whole, (*_CONTAINERS, tuple)):  # what they hold is as it was
        object.__setattr__(whole, name, value)


def _own_modules() -> dict[str, Any]:
    """Return those that the script has imported of its own."""
    every = [*sys.modules.items()]
    return {n.replace(".", ":"): x for n, x in every if n[:2] != "__" and _is_own(n)}


def is_of_a_script(kind: type[Any]) -> bool:
    """Whether a class is neither Python's nor an installed package's."""
    return is_a_scripts(kind.__module__)


def is_a_scripts(module: str) -> bool:
    """The same of a module, by its name."""
    return module == "__main__" or _is_own(module)


@cache
def _is_own(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] == _OWN or not Path(file).is_absolute():
        return False
    where = str(Path(file).resolve())
    return not where.startswith(_LIBRARIES) and "site-packages" not in where
