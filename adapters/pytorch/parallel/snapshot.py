"""What a call of a module changes beside its tensors, and how that is taken back: random numbers of
Python's and NumPy's, and what the script keeps in variables, lists, dicts and objects of its own.
Copies would each do so for a part of the batch, and a look at how its layers follow each other
would do so once more."""

from __future__ import annotations

import dis
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, final

import torch
from torch import nn

from dream.adapters.pytorch.private import tables
from dream.adapters.pytorch.randomness.current import same, set_state, state
from dream.adapters.pytorch.randomness.own_generators import (
    held_by,
    home_of,
    methods_of,
    states_of,
    take_back,
)
from dream.data.generators import go_on_in_numpy, numpy_state, numpy_words

_HOLD = (dict, OrderedDict, list, set, deque)
_PLAIN = (int, float, str, bool, bytes, type(None))
_MOST = 4096
"""Entries of what is looked into; a module may have a table of a million words."""
_DEEP = 3
OF_MODULES = frozenset(vars(nn.Module()))
_QUIET = ("dream", "tqdm")
_NAMES = ("dream", "QueueFeederThread")
"""Whose threads, and how named, draw nothing; loaders have such."""
_NOTHING = object()


@final
class Reach:
    """What the calls of one module can reach, as far as that does not change."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.generators = [x for x in held_by(module, by_dream=False) if x is not _python()]
        self.homes = {home_of(type(part)) for part in module.modules()} - {"torch", "dream"}
        named = {(id(names), name): (names, name) for names, name in _named(module)}
        self.named = [*named.values()]

    def before(self) -> Snapshot:
        return Snapshot(self)


@final
class Snapshot:
    """How things are before a call."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._torch, self._python = state(), random.getstate()
        self._numpy, self._words = numpy_state(), numpy_words()
        self._own = states_of(reach.generators)
        self._set = [(names, name, names[name]) for names, name in reach.named if name in names]
        self._held: dict[int, tuple[str, Any, Any]] = {}
        self._attributes = [(names := vars(part), {**names}) for part in reach.module.modules()]
        for part in reach.module.modules():
            known = OF_MODULES.union(*tables(part))
            for name, value in vars(part).items():
                if name not in known:
                    self._look(f"{type(part).__name__}.{name}", value, _DEEP)
        for _, name, value in self._set:
            self._look(name, value, _DEEP)

    def drew(self) -> bool:
        """Whether torch's generators have been drawn from."""
        return not same(self._torch, state())

    def changed(self) -> str:
        """What else is not as it was, in words that follow the module's name; empty where all
        is."""
        if not _others_draw() and self._drew_elsewhere():
            return "draws random numbers by another generator than torch's"
        for names, name, value in self._set:
            if names.get(name, _NOTHING) is not value:
                return f"sets {name} in its forward pass"
        for name, each, values in self._held.values():
            if not _alike(each, values):
                return f"writes to {name} in its forward pass"
        return ""

    def kept(self) -> str:
        """What attribute of a module is another than it was, in words that follow the module's
        name; empty where none is."""
        for names, values in self._attributes:
            for name, value in names.items():
                before = values.get(name, _NOTHING)
                if value is not before and not (type(value) in _PLAIN and value == before):
                    return f"sets {name} in its forward pass"
        return ""

    def take_back(self) -> None:
        """Have all be as it was."""
        set_state(self._torch)
        if not _others_draw() and self._drew_elsewhere():
            random.setstate(self._python)
            go_on_in_numpy(self._numpy)
            take_back(self._reach.generators, self._own)
        for names, name, value in self._set:
            if names.get(name, _NOTHING) is not value:
                names[name] = value
        for names, values in self._attributes:
            for name in names.keys() - values.keys():
                del names[name]
            names.update(values)
        for _, each, values in self._held.values():
            if not _alike(each, values):
                each.clear()
                (each.extend if isinstance(each, (list, deque)) else each.update)(values)

    def _drew_elsewhere(self) -> bool:
        others = self._python == random.getstate() and self._words == numpy_words()
        own = states_of(self._reach.generators)
        return not others or not all(map(_same, self._own, own))

    def _look(self, name: str, value: Any, deep: int) -> None:
        kind = type(value)
        if home_of(kind) in self._reach.homes and not issubclass(kind, (nn.Module, torch.Tensor)):
            value = getattr(value, "__dict__", None)
        if type(value) not in _HOLD or len(value) > _MOST or id(value) in self._held:
            return
        self._held[id(value)] = name, value, value.copy()
        if deep:
            for each in value.values() if isinstance(value, dict) else [*value]:
                if type(each) not in _PLAIN:
                    self._look(name, each, deep - 1)


def _python() -> random.Random:
    generator: random.Random = random.random.__self__  # type: ignore[attr-defined]
    return generator


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return repr(one) == repr(other)


def _alike(each: Any, values: Any) -> bool:
    if len(each) != len(values):
        return False
    if isinstance(each, dict):
        return all(each.get(key, _NOTHING) is value for key, value in values.items())
    if isinstance(each, set):
        return bool(each == values)
    return all(one is other for one, other in zip(each, values, strict=True))


def _others_draw() -> bool:
    """Whether threads of the script's own run, which may draw at the same time."""
    here = threading.current_thread(), threading.main_thread()
    return any(not _is_quiet(each) for each in threading.enumerate() if each not in here)


def _is_quiet(thread: threading.Thread) -> bool:
    named = thread.name.startswith(_NAMES) or "_pin_memory_loop" in thread.name
    return named or home_of(type(thread)) in _QUIET


def _named(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """The variables that functions of the script name, which its calls may run."""
    kinds = {base for part in module.modules() for base in type(part).__mro__}
    given = (x for part in module.modules() for x in vars(part).values())
    left = [each for kind in kinds for each in methods_of(kind)]
    left += [x for x in given if isinstance(x, FunctionType)]
    seen: set[FunctionType] = set()
    while left and len(seen) < _MOST:
        function = left.pop()
        if function in seen:
            continue
        seen.add(function)
        around = function.__globals__
        closed = _closed(function)
        library = home_of(around.get("__name__")) in ("torch", "dream")
        own = () if library else sorted(_names(function.__code__))
        for names, name in (*((closed, x) for x in closed), *((around, x) for x in own)):
            value = names.get(name)
            if isinstance(value, FunctionType):
                left.append(value)
            elif name in names:
                yield names, name


def _names(code: CodeType) -> set[str]:
    """The variables of a file that code names, functions in it too. An attribute's name is none, be
    there a variable so called, as a data set may be by `weight.data`."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    own = {each.argval for each in dis.get_instructions(code) if "GLOBAL" in each.opname}
    return own.union(*map(_names, inner))


def _closed(function: FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found
