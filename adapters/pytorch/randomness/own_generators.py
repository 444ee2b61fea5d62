"""Generators of random numbers that a script has made: those that a dataset or a collate function
has, among its attributes or in the script around it, and those of the loop that reads batches."""

from __future__ import annotations

import random
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from itertools import islice
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from dream.adapters.pytorch.randomness.words import variables_of
from dream.data.generators import has_state

_MOST = 4096
"""Objects that are looked at; a dataset may be a list of a million samples."""
_FEW = 64
_NUMPY = (np.random.Generator, np.random.RandomState)
_OTHERS = (random.Random, *_NUMPY)
_DREAM = __name__.partition(".")[0]
_KINDS: tuple[type[Any], ...] = (random.Random, torch.Generator, *_NUMPY)
_NO_OWNERS = (
    torch.Tensor, np.ndarray, str, bytes, int, float, type(None), type, ModuleType, *_KINDS,
)  # fmt: skip
"""Asked for by `issubclass`: torch has a class of classes ask Python code who an instance is of."""
_HOLD = (dict, OrderedDict, list, tuple, set, bool)
_methods: MutableMapping[type[Any], tuple[FunctionType, ...]] = WeakKeyDictionary()


def held_by(*owners: Any, by_dream: bool = True) -> list[Any]:
    """Find the generators that these have. by_dream: also where an object of dream's, which may
    wrap one of the script's, stands between."""
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    left = [*owners]
    while left and len(seen) < _MOST:
        item = left.pop()
        kind, key = type(item), id(item)
        if _is_generator(kind):
            found[key] = item
        elif key not in seen and not issubclass(kind, _NO_OWNERS):
            seen[key] = item
            left += _within(item) if by_dream or home_of(kind) != _DREAM else []
    return [*found.values()]


def _is_generator(kind: type[Any], kinds: tuple[type[Any], ...] = _KINDS) -> bool:
    return issubclass(kind, kinds) and has_state(kind)


def script_frames() -> Iterator[FrameType]:
    """Those of functions and modules that are neither dream's nor torch's, innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not _is_of_a_library(frame.f_globals):
            yield frame
        frame = frame.f_back


def _is_of_a_library(names: Mapping[str, Any]) -> bool:
    """Whether a module is dream's or torch's. names: its globals."""
    return home_of(names.get("__name__")) in (_DREAM, "torch")


def home_of(item: object) -> str:
    """The package of a class, or of a module by its name."""
    return str(item.__module__ if isinstance(item, type) else item).partition(".")[0]


def named_by_the_script() -> Iterator[tuple[str, Any]]:
    """Those that variables of the script's functions and modules name, as they are called now; each
    once."""
    seen: set[int] = set()
    for frame in script_frames():
        for name, value in (*variables_of(frame).items(), *frame.f_globals.items()):
            if _is_generator(type(value)) and id(value) not in seen:
                seen.add(id(value))
                yield name, value


def of_the_loop() -> list[Any]:
    """Find NumPy's and Python's that the script names, or that models have which it names. By the
    classes of all that it names, which are few: it is asked for in each pass over a loader."""
    values: list[Any] = []
    for frame in script_frames():
        values += [*variables_of(frame).values(), *frame.f_globals.values()]
    wanted = {k for k in {*map(type, values)} if issubclass(k, (*_OTHERS, torch.nn.Module))}
    named = {id(x): x for x in values if type(x) in wanted}.values()
    models = [x for x in named if isinstance(x, torch.nn.Module)]
    found = [*named, *held_by(*models, by_dream=False)]
    return [*{id(each): each for each in found if _is_generator(type(each), _OTHERS)}.values()]


def states_of(generators: list[Any]) -> list[Any]:
    return [_state(each) for each in generators]


def digests_of(generators: Iterable[Any]) -> list[int]:
    """Return a number for the state of each."""
    return [zlib.crc32(_bytes(_state(each))) for each in generators]


def take_back(generators: list[Any], states: list[Any]) -> None:
    """Have generators go on from where they were."""
    for each, state in zip(generators, states, strict=True):
        if isinstance(each, np.random.Generator):
            each.bit_generator.state = state
        elif isinstance(each, random.Random):
            each.setstate(state)
        else:
            each.set_state(state)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _bytes(state: Any) -> bytes:
    if isinstance(state, torch.Tensor):
        return state.numpy().tobytes()
    return repr([x.tolist() if isinstance(x, np.ndarray) else x for x in _flat(state)]).encode()


def _flat(state: Any) -> Iterator[Any]:
    if isinstance(state, Mapping):
        state = [*state.values()]
    if isinstance(state, (tuple, list)):
        for each in state:
            yield from _flat(each)
    else:
        yield state


def _within(item: Any) -> list[Any]:
    """What an object refers to, as far as a dataset's own things go."""
    if type(item) is dict:
        return [*islice(item.values(), _FEW)]
    if type(item) in (list, tuple, set):
        return [*islice(item, _FEW)]
    if isinstance(item, partial):
        return [item.func, item.args, item.keywords]
    if isinstance(item, MethodType):
        return [item.__self__, item.__func__]
    if isinstance(item, FunctionType):
        return _of_function(item)
    own = getattr(item, "__dict__", {}).values()
    return [*(x for x in own if type(x) not in _HOLD or x), *methods_of(type(item))]


def methods_of(kind: type[Any]) -> tuple[FunctionType, ...]:
    """Those that a class has itself, of which something else can be found. Kept: a model has
    hundreds of parts of a few classes."""
    known = _methods.get(kind)
    if known is None:
        functions = (each for each in vars(kind).values() if isinstance(each, FunctionType))
        known = tuple(f for f in functions if f.__closure__ or not _is_of_a_library(f.__globals__))
        _methods[kind] = known
    return known


def _of_function(function: FunctionType) -> list[Any]:
    """Its closure, its defaults, and what of its module it names that is a generator; none of which
    a library's functions have."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    around = function.__globals__
    if _is_of_a_library(around):
        return cells
    names = (around.get(name) for name in function.__code__.co_names)
    kinds = (*_KINDS, FunctionType)
    return [
        *cells,
        *(function.__defaults__ or ()),
        *(x for x in names if issubclass(type(x), kinds)),
    ]
