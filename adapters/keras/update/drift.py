"""Replicas of a Keras model that have drifted apart are found: before every so many steps, and at a
fit's end, the ranks compare a digest of what trains, and the first difference is named."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import keras
import numpy as np

from dream._log import warn_once
from dream.adapters.keras import private
from dream.adapters.keras.consistency import plain_variables, statistics_of, take_rank_0s
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.optimizer import check_hyperparameters, hyperparameters, optimizers_of
from dream.adapters.keras.randomness.in_step import InStep
from dream.data.alike import of_one_place
from dream.update.drift import Pace, differing, drifted


@final
class DriftGuard:
    """Compares one model's replicas, has their generators go on alike, and keeps alike the states
    that the model's call changes by a rank's own samples."""

    def __init__(self, engine: Engine) -> None:
        self._ranks = engine.communicator
        self._in_step = InStep(engine)
        self._pace = Pace()
        self._exchange = 0.0
        self._kept: list[Any] = []

    def before_step(self, model: Any, optimizers: Sequence[Any] | None = None) -> None:
        """Compare where it is time to. optimizers: those of the model, if it does not hold them."""
        if self._pace.due():
            self.compare(model, optimizers)
        elif self._kept:
            take_rank_0s(self._kept, self._ranks)

    def compare(self, model: Any, optimizers: Sequence[Any] | None = None) -> None:
        """Compare all there is. Every rank calls it."""
        step, began = self._pace.step_seconds(), time.perf_counter()
        held = optimizers_of(model) if optimizers is None else optimizers
        trained, states = _variables_of(model)
        own: list[Mapping[str, object]] = [
            _digests(trained), _digests(states), hyperparameters(held),
        ]  # fmt: skip
        mine = [zlib.crc32(repr(list(each.values())).encode()) for each in own]
        cost = time.perf_counter() - began
        began = time.perf_counter()
        own_word = mine, self._in_step.word(model), cost + self._exchange, step
        said = of_one_place(self._ranks.all_gather_object(("between two steps", own_word)))
        self._exchange = time.perf_counter() - began
        alike = [len({digests[i] for digests, *_ in said}) == 1 for i in range(3)]
        if not alike[2]:
            check_hyperparameters(self._ranks.all_gather_object(own[2]))
        if not alike[0]:
            found = differing(self._ranks.all_gather_object(own[0]))
            raise drifted([(_name(trained[int(i)]), ranks) for i, ranks in found], len(trained))
        if not alike[1]:
            others = differing(self._ranks.all_gather_object(own[1]))
            self._keep(states[int(i)] for i, _ in others)
        self._in_step.heard([word for _, word, *_ in said], model)
        self._pace.compared(min(cost for *_, cost, _ in said), max(step for *_, step in said))

    def _keep(self, found: Iterable[Any]) -> None:
        """Have states that differ hold what rank 0's hold, from now on; each is named once."""
        for state in found:
            if not any(state is each for each in self._kept):
                self._kept.append(state)
                _tell_kept(state)
        take_rank_0s(self._kept, self._ranks)


@final
class CopiesGuard:
    """Compares the copies of one model's variables that this process has on its devices."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pace = Pace()
        self._kept: list[Any] = []

    def before_step(self, model: Any) -> None:
        """Compare where it is time to."""
        if self._pace.due():
            self.compare(model)
        else:
            self._take_firsts()

    def compare(self, model: Any) -> None:
        """Compare all there is; a state that differs holds what the first copy does, from now
        on."""
        step, began = self._pace.step_seconds(), time.perf_counter()
        trained, states = _variables_of(model)
        found = self._apart(trained)
        if found:
            named = [(_name(trained[place]), parts) for place, parts in found]
            raise drifted(named, len(trained), "replica")
        for place, _ in self._apart(states):
            if not any(states[place] is each for each in self._kept):
                self._kept.append(states[place])
                _tell_kept(states[place])
        self._take_firsts()
        self._pace.compared(time.perf_counter() - began, step)

    def _take_firsts(self) -> None:
        for state in self._kept:
            state.assign(self._engine.on_each(state)[0])

    def _apart(self, variables: Sequence[Any]) -> list[tuple[int, list[int]]]:
        copies = [self._engine.on_each(v) for v in variables]
        said = [_digests(own) for own in zip(*copies, strict=True)]
        return [(int(place), parts) for place, parts in differing(said)] if said else []


def guard_of(engine: Engine) -> DriftGuard | None:
    """Return what compares a model's replicas in several processes; None where there is one."""
    return DriftGuard(engine) if engine.several_processes and not engine.mixed else None


def _tell_kept(state: Any) -> None:
    warn_once(
        f"{state.path} is a state that the model's call changes by a replica's own samples: all "
        "replicas hold the first one's, which has seen its share alone"
    )


def _variables_of(model: Any) -> tuple[list[Any], list[Any]]:
    """Return a model's parameters, frozen ones and running statistics among them, and the states
    that its call may change otherwise."""
    if not isinstance(model, keras.Layer):
        return list(model.variables), []
    plain = plain_variables(model)
    averaged = {id(v) for v in statistics_of(model)}
    own = {id(v) for layer in private.layers_of(model) for v in private.own_states(layer)}
    changed = own - averaged
    return (
        [*(v for v in model.weights if id(v) not in changed), *plain],
        [v for v in model.weights if id(v) in changed],
    )


def _name(variable: Any) -> str:
    name = getattr(variable, "path", None) or variable.name
    return str(name or f"a tensor of shape {tuple(variable.shape)} that a layer holds")


def _digests(variables: Iterable[Any]) -> dict[str, int]:
    """Return a number for the bits of each variable, by its place."""
    found = {}
    for place, variable in enumerate(variables):
        tensor = not hasattr(variable, "assign")  # torch's, on a GPU perhaps
        held = keras.ops.convert_to_numpy(variable) if tensor else variable.numpy()
        array = np.ascontiguousarray(held).reshape(-1)
        found[str(place)] = zlib.crc32(array.view(np.uint8).data)
    return found
