"""What a script counts with in Python, and its generators, in a step that TensorFlow traces:
they stand still between traces, and replicas are traced by themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from dream.adapters.keras import private
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import trial
from dream.adapters.keras.update.script_state import reached
from dream.checkpoint.untouched.variables import is_of_a_script
from dream.data import generators

_State = dict[tuple[str, int], Any]
"""Of numbers and generators, by what they are called and whose they are."""
_told: WeakSet[Any] = WeakSet()
_begun: WeakKeyDictionary[Engine, tuple[Any, Any]] = WeakKeyDictionary()
"""Of the first replica's step: Python's and NumPy's generators at its start."""


@contextmanager
def watched(model: Any, engine: Engine) -> Iterator[None]:
    """Surround a model's step: say, once, if it changes what it goes by in Python where a replica's
    changes are not one device's. Ranks that run each step in Python change it alike."""
    if engine.pooled:
        _begin_alike(engine)
    alike = engine.framework != "tensorflow" or (model.run_eagerly and not engine.pooled)
    if alike or model in _told:
        yield
        return
    _told.add(model)
    read = _reads(model)
    before = read()
    yield
    changed = {name for (name, of), x in read().items() if before.get((name, of)) != x}
    if changed:
        trial.say(
            f"The step of {model.name!r} counts or draws in Python, which TensorFlow runs as it "
            "traces a step, and not each time: it is traced otherwise here, so what comes of it "
            "may not be one device's. Received: a step that changes "
            f"{', '.join(sorted(changed))}. Count in a keras.Variable, and draw by keras.random or "
            "in the dataset", engine,
        )  # fmt: skip


def _begin_alike(engine: Engine) -> None:
    """Have replicas that one process traces, one after the other, draw from Python's and NumPy's
    generators what the first one draws: what a step picks by them is picked once on one device."""
    if engine.replica() == 0:
        _begun[engine] = generators.python_state(), generators.numpy_state()
    else:
        of_python, of_numpy = _begun[engine]
        generators.go_on_in_python(of_python)
        generators.go_on_in_numpy(of_numpy)


def _reads(model: Any) -> Callable[[], _State]:
    """Return what reads the numbers and generators that a model's step may go by."""
    found = reached(model, *private.given_metrics(model))
    objects = [x for x in found if is_of_a_script(type(x)) and hasattr(x, "__dict__")]
    draws = [
        x
        for x in found
        if isinstance(x, (np.random.Generator, random.Random)) and generators.has_state(type(x))
    ]

    def read() -> _State:
        numbers = {
            (f"{type(x).__name__}.{name}", id(x)): value
            for x in objects
            for name, value in vars(x).items()
            if type(value) in (int, float)
        }
        states = {(f"a {type(x).__name__}", id(x)): _state(x) for x in draws}
        return {**numbers, **states, ("NumPy's generator", 0): generators.numpy_words()}

    return read


def _state(generator: Any) -> str:
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    return repr(generator.bit_generator.state)
