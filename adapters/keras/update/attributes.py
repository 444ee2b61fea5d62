"""What a model keeps beside its variables: numbers and lists of the script's, generators, and
iterators. A step that is tried leaves them as they were."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Never, final

import keras
import numpy as np

from dream.adapters.keras import private

_OF_KERAS = frozenset({
    "built", "compiled", "train_function", "test_function", "predict_function", "_called",
    "_functional", "_layers", "_losses", "_losses_override", "_metrics", "_seed_generators",
    "_trainable_variables", "_non_trainable_variables", "_inbound_nodes", "_outbound_nodes",
})  # fmt: skip
"""Attributes that Keras itself sets, or fills, as a layer is called."""
_MOST = 1000
"""Things in a list, each of which is looked into."""
_TRACKED = keras.Layer, keras.Variable, keras.metrics.Metric, keras.optimizers.Optimizer
_Undo = Callable[[], object]


@contextmanager
def kept(model: Any) -> Iterator[None]:
    """Inside, what the model and its layers keep may change. What they would take of an iterator
    cannot be put back, so that raises."""
    undone = [undo for layer in private.layers_of(model) for undo in _of_attributes(vars(layer))]
    try:
        yield
    finally:
        for undo in undone:
            undo()


@final
class _Untaken:
    """Stands in for an iterator."""

    def __iter__(self) -> _Untaken:
        return self

    def __next__(self) -> Never:
        raise RuntimeError("A step that is tried takes nothing of an iterator.")


def _of_attributes(own: dict[str, Any]) -> Iterator[_Undo]:
    before = {name: value for name, value in own.items() if name not in _OF_KERAS}
    for name, value in before.items():
        if hasattr(value, "__next__"):
            own[name] = _Untaken()
        if not name.startswith("_") or not isinstance(value, (dict, set)):  # those are Keras's
            yield from _of_contents(value)
    yield partial(_put_back, own, before)


def _put_back(own: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [n for n, v in own.items() if n not in before and _may_be_let_go(n, v)]:
        del own[name]
    for name, value in before.items():
        if own.get(name) is not value:
            own[name] = value


def _may_be_let_go(name: str, value: Any) -> bool:
    return not (name in _OF_KERAS or callable(value) or isinstance(value, _TRACKED))


def _of_contents(value: Any) -> Iterator[_Undo]:
    """What puts back the contents of a thing that is changed in place."""
    if isinstance(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, random.Random):
        yield partial(value.setstate, value.getstate())
    elif isinstance(value, np.ndarray):
        yield partial(np.copyto, value, value.copy())
    elif isinstance(value, (list, deque, dict, set)):
        held = dict(value) if isinstance(value, dict) else list(value)
        for each in list(held.values() if isinstance(held, dict) else held)[:_MOST]:
            yield from _of_contents(each)
        yield partial(_fill, value, held)


def _fill(value: Any, held: Any) -> None:
    """Have a list or the like hold what it held. Keras's own know what is put in by their methods,
    and they knew this."""
    now = dict(value) if isinstance(value, dict) else list(value)
    if len(now) == len(held) and all(_same(now, held, at) for at in _places(held)):
        return
    kind = next(k for k in (list, deque, dict, set) if isinstance(value, k))
    kind.clear(value)
    extend: Any = list.extend if kind is list else deque.extend if kind is deque else kind.update
    extend(value, held)


def _places(held: Any) -> Any:
    return held if isinstance(held, dict) else range(len(held))


def _same(now: Any, held: Any, place: Any) -> bool:
    return (place in now if isinstance(now, dict) else True) and now[place] is held[place]
