"""What a script keeps beside variables, and a trial of its functions would change: numbers, lists
and generators, in attributes, globals and closures. A trial leaves them as they were."""

from __future__ import annotations

import io
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Never, final

import keras
import numpy as np

from dream.adapters.keras import private
from dream.checkpoint.untouched.variables import is_a_scripts, is_of_a_script
from dream.data.generators import has_state

_OF_KERAS = frozenset({
    "built", "compiled", "train_function", "test_function", "predict_function", "_called",
    "_functional", "_layers", "_losses", "_losses_override", "_metrics", "_seed_generators",
    "_trainable_variables", "_non_trainable_variables", "_inbound_nodes", "_outbound_nodes",
})  # fmt: skip
"""Attributes that Keras itself sets, or fills, as a layer is called."""
_INSIDE = frozenset({"_fn", "_compile_loss", "_user_loss"})
"""Attributes of Keras's that lead to functions of the script's, beside those without a `_`."""
_FEW, _MOST, _BYTES, _ALL_BYTES = 1000, 20_000, 1 << 24, 1 << 26
"""Things in a list that are looked into, things in all, bytes of an array that is copied, and of
all arrays."""
_TRACKED = keras.Layer, keras.Variable, keras.metrics.Metric, keras.optimizers.Optimizer
_CONTAINERS = list, deque, OrderedDict, dict, set
_Undo = Callable[[], object]


@contextmanager
def kept(*tried: Any) -> Iterator[None]:
    """Inside, what these keep, and what their functions go by, may change. What they would take of
    an iterator cannot be put back, so that raises. tried: models, losses, metrics."""
    undone: list[_Undo] = []
    reached = _Reached()
    for each in tried:
        layers = private.layers_of(each) if isinstance(each, keras.Layer) else []
        undone += [undo for layer in layers for undo in _of_names(vars(layer))]
        undone += reached.from_these([each, *layers])
    try:
        yield
    finally:
        for undo in reversed(undone):
            undo()


def reached(*roots: Any) -> list[Any]:
    """Return what these keep and what their functions go by."""
    found = _Reached()
    layers = [x for each in roots if isinstance(each, keras.Layer) for x in private.layers_of(each)]
    for undo in reversed([*found.from_these([*roots, *layers])]):
        undo()
    return found.all()


@final
class _Untaken:
    """Stands in for an iterator."""

    def __iter__(self) -> _Untaken:
        return self

    def __next__(self) -> Never:
        raise RuntimeError("A step that is tried takes nothing of an iterator.")


@final
class _Reached:
    """What is reached of the script's from its objects and functions."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # held, so that no other object gets the number of one
        self._left: deque[Any] = deque()
        self._bytes = 0

    def all(self) -> list[Any]:
        return list(self._seen.values())

    def from_these(self, roots: Iterable[Any]) -> Iterator[_Undo]:
        self._left.extend(roots)
        while self._left and len(self._seen) < _MOST:
            value = self._left.popleft()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                yield from self._of(value)

    def _of(self, value: Any) -> Iterator[_Undo]:
        if isinstance(value, _CONTAINERS):
            held = dict(value) if isinstance(value, dict) else list(value)
            self._left += _elements(held)
            yield partial(_fill, value, held)
        elif isinstance(value, tuple):
            self._left.extend(value[:_FEW])
        elif isinstance(value, np.ndarray):
            fits = value.nbytes <= _BYTES and self._bytes + value.nbytes <= _ALL_BYTES
            if fits and value.flags.writeable:
                self._bytes += value.nbytes
                yield partial(np.copyto, value, value.copy())
        elif isinstance(value, MethodType):
            self._left += [value.__self__, value.__func__]
        elif isinstance(value, FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, partial):
            self._left += [value.func, value.args, value.keywords]
        else:
            yield from _of_generator(value)
            yield from self._of_object(value)

    def _of_object(self, value: Any) -> Iterator[_Undo]:
        if isinstance(value, type) or not hasattr(value, "__dict__"):
            return
        own, kind = vars(value), type(value)
        if is_of_a_script(kind):
            yield from _of_names(own)
            classes = [each for each in kind.__mro__ if is_of_a_script(each)]
            self._left += [f for each in classes for f in vars(each).values() if callable(f)]
            self._left += [x for n, x in own.items() if n not in _OF_KERAS and not _is_inner(n, x)]
        elif kind.__module__.startswith("keras."):
            for x in [x for n, x in own.items() if n[:1] != "_" or n in _INSIDE]:
                self._left += _elements(x) if isinstance(x, _CONTAINERS) else [x]

    def _of_function(self, function: FunctionType) -> Iterator[_Undo]:
        shared, cells = function.__globals__, [*_filled(function.__closure__ or ())]
        self._left += [cell.cell_contents for cell in cells]
        if not is_a_scripts(str(shared.get("__name__"))):  # it may have one of the script's in it
            return
        found = {n: shared[n] for n in _names(function.__code__) if n in shared}
        self._left += [*found.values(), *(function.__defaults__ or ())]
        yield from _of_names(shared, found)
        for cell in cells:
            yield partial(setattr, cell, "cell_contents", cell.cell_contents)
            if _is_taken_from(cell.cell_contents):
                cell.cell_contents = _Untaken()


def _filled(cells: Iterable[CellType]) -> Iterator[CellType]:
    for cell in cells:
        with suppress(ValueError):  # it is empty as yet
            cell.cell_contents  # noqa: B018
            yield cell


def _elements(held: Any) -> list[Any]:
    return list(held.values() if isinstance(held, dict) else held)[:_FEW]


def _names(code: CodeType) -> set[str]:
    """The names that code uses, functions in it too."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _is_inner(name: str, value: Any) -> bool:
    """Whether this is a dict or a set in which Keras, or torch, has what it knows of a layer."""
    return name.startswith("_") and isinstance(value, (dict, set))


def _is_taken_from(value: Any) -> bool:
    return hasattr(type(value), "__next__") and not isinstance(value, io.IOBase)


def _of_names(own: dict[str, Any], some: dict[str, Any] | None = None) -> Iterator[_Undo]:
    """Of attributes, or of some of a module's globals."""
    before = {name: x for name, x in own.items() if name not in _OF_KERAS} if some is None else some
    for name, value in before.items():
        if _is_taken_from(value):
            own[name] = _Untaken()
    yield partial(_put_back, own, before, anew=some is None)


def _put_back(own: dict[str, Any], before: dict[str, Any], *, anew: bool) -> None:
    for name in [n for n, v in own.items() if anew and n not in before and _may_go(n, v)]:
        del own[name]
    for name, value in before.items():
        if own.get(name) is not value:
            own[name] = value


def _may_go(name: str, value: Any) -> bool:
    return not (name in _OF_KERAS or callable(value) or isinstance(value, _TRACKED))


def _of_generator(value: Any) -> Iterator[_Undo]:
    if isinstance(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, random.Random) and has_state(type(value)):
        yield partial(value.setstate, value.getstate())
    elif type(value).__name__ in ("RandomState", "Generator") and hasattr(value, "set_state"):
        yield partial(value.set_state, value.get_state())  # NumPy's older one, and torch's


def _fill(value: Any, held: Any) -> None:
    """Have a list or the like hold what it held. Keras's own know what is put in by their methods,
    and they knew this."""
    now = dict(value) if isinstance(value, dict) else list(value)
    if len(now) == len(held) and all(_same(now, held, at) for at in _places(held)):
        return
    kind: Any = next(k for k in _CONTAINERS if isinstance(value, k))
    kind.clear(value)
    (kind.extend if kind in (list, deque) else kind.update)(value, held)


def _places(held: Any) -> Any:
    return held if isinstance(held, dict) else range(len(held))


def _same(now: Any, held: Any, place: Any) -> bool:
    return (place in now if isinstance(now, dict) else True) and now[place] is held[place]
