"""A server's parameters under the Keras optimizer that the script made on the workers."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dream._plain import pack, unpack
from dream.adapters.keras import private
from dream.adapters.keras.asynchronous.machine import Machine
from dream.adapters.keras.asynchronous.recipe import Recipe, made_of, state_of, take_state
from dream.parameter_server.owner import Owner
from dream.parameter_server.words import garbled


@final
class KerasOwner(Owner):
    """One update at a time, so Keras's own count of them is right, and with it bias correction and
    schedules."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._values: NDArray[Any] = np.empty(0, np.float32)
        self._optimizer: Any = None
        self._update: Any = None
        self._rate: float | None = None
        self._current: float | None = None

    def build(self, recipe: bytes, values: NDArray[Any]) -> None:
        told = Recipe.of(recipe, values.size)
        self._optimizer, variables = made_of(told)
        counter = private.counter(self._optimizer)
        self._machine.load(variables, counter)(values, int(counter))
        self._values = values
        self._update = self._machine.update(self._optimizer, variables)
        rate = told.config.get("learning_rate")
        self._rate = self._current = rate if isinstance(rate, float) else None

    @property
    def values(self) -> NDArray[Any]:
        return self._values

    def read_settings(self, settings: bytes) -> Any:
        rate = unpack(settings)
        if rate is not None and not isinstance(rate, float):
            garbled("a learning rate")
        return rate

    def step(self, gradient: NDArray[Any], present: bytes, settings: Any) -> None:
        """settings: the learning rate of the worker that pushes."""
        rate = self._rate if settings is None else settings
        if rate is not None and rate != self._current:
            self._optimizer.learning_rate = self._current = rate
        self._values = self._update(gradient, present)

    def save(self) -> bytes:
        return pack(state_of(self._optimizer))

    def restore(self, state: bytes) -> None:
        take_state(self._optimizer, unpack(state))
