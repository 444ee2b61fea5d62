"""A Keras optimizer as names and numbers, on its way to a server, and what is made of it there.

Keras's own reading of configurations is not used: it imports what they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any, Self, final

import keras
import numpy as np
from keras.optimizers.schedules import LearningRateSchedule
from numpy.typing import NDArray

from dream._errors import Unsupported
from dream._plain import name_of, pack, unpack
from dream.adapters.keras import private
from dream.adapters.keras.asynchronous.block import ServedMachine
from dream.parameter_server.optimizer import (
    ServerOptimizer,
    find_class,
    pack_optimizer,
    refuse_optimizer,
)
from dream.parameter_server.protocol import refuse_garbled

_DTYPES = ("float32", "float64")
_CLASS = "class_name"
"""What marks a description that Keras would make an object of."""


@dataclass(frozen=True)
class HeldVariable:
    """A variable of the shard. constraint: its class's name and configuration, or None; decays:
    whether weight decay acts on it."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    constraint: tuple[str, dict[str, Any]] | None
    decays: bool


@dataclass(frozen=True)
class KerasOptimizerSpec:
    """A Keras optimizer as it travels to a server.

    kind, config: the name of the optimizer's class, and what makes another; schedule: as a
    variable's constraint, in the place of a learning rate; state: its variables, by name.
    """

    kind: str
    config: dict[str, Any]
    schedule: tuple[str, dict[str, Any]] | None
    variables: list[HeldVariable]
    state: dict[str, NDArray[Any]]

    def packed(self) -> bytes:
        held = [tuple(vars(v).values()) for v in self.variables]
        said = (self.kind, self.config, self.schedule, held, self.state)
        return pack_optimizer(said, self.kind.rpartition(":")[2])

    @classmethod
    def of(cls, data: bytes, size: int) -> Self:
        """Read what a worker has sent. size: how many elements the shard's variables have."""
        try:
            kind, config, schedule, held, state = unpack(data)
            variables = [HeldVariable(*v) for v in held]
            fits = sum(prod(v.shape) for v in variables) == size
            fits = fits and all(v.dtype in _DTYPES and type(v.path) is str for v in variables)
            fits = fits and type(config) is dict is type(state)
        except (TypeError, ValueError):
            fits = False
        if not fits:
            refuse_garbled(f"a description of an optimizer over {size} elements")
        return cls(kind, config, schedule, variables, state)


def describe(optimizer: Any, shard: Sequence[Any]) -> bytes:
    """Pack the optimizer as the server of some variables needs it. Unsupported for what cannot
    travel."""
    held = [
        HeldVariable(
            v.path,
            tuple(v.shape),
            str(v.dtype),
            _described(v.constraint, keras.constraints.Constraint, f"the constraint of {v.path}"),
            private.decays(optimizer, v),
        )
        for v in shard
    ]
    config, schedule = dict(optimizer.get_config()), None
    if not isinstance(config["learning_rate"], float):
        schedule = private.schedule_of(optimizer)
        config["learning_rate"] = None
    kind = type(optimizer)
    _check_plain(config, kind.__name__)
    described = _described(schedule, LearningRateSchedule, f"the schedule of {kind.__name__}")
    return KerasOptimizerSpec(name_of(kind), config, described, held, state_of(optimizer)).packed()


def make(told: KerasOptimizerSpec) -> tuple[Any, list[Any]]:
    """Make (optimizer, variables), on a server."""
    kind = find_class(told.kind, keras.optimizers.Optimizer)
    config = dict(told.config)
    _check_plain(config, kind.__name__)
    if told.schedule is not None:
        config["learning_rate"] = _made(told.schedule, LearningRateSchedule)
    variables = [_variable(held) for held in told.variables]
    optimizer = kind.from_config(config)
    left_out = [v for v, held in zip(variables, told.variables, strict=True) if not held.decays]
    if left_out:
        optimizer.exclude_from_weight_decay(var_list=left_out)
    optimizer.build(variables)
    take_state(optimizer, told.state)
    return optimizer, variables


def _described(thing: Any, base: type[Any], what: str) -> tuple[str, dict[str, Any]] | None:
    """Describe an object of Keras's by its class's name and configuration."""
    if thing is None:
        return None
    if not isinstance(thing, base):
        refuse_optimizer(f"{what}, a {type(thing).__name__} and no {base.__name__}")
    config = thing.get_config()
    _check_plain(config, what)
    return name_of(type(thing)), config


def _made(described: tuple[str, dict[str, Any]], base: type[Any]) -> Any:
    try:
        name, config = described
    except (TypeError, ValueError):
        refuse_garbled("an object of Keras's")
    _check_plain(config, str(name))
    return find_class(name, base).from_config(config)


def _check_plain(config: Any, what: str) -> None:
    """Refuse a configuration with another object's in it: Keras would import what that names."""
    if isinstance(config, Mapping):
        if _CLASS in config:
            refuse_optimizer(
                f"{what}, whose configuration holds an object, {config[_CLASS]!r:.100}"
            )
        for value in config.values():
            _check_plain(value, what)
    elif isinstance(config, (list, tuple)):
        for value in config:
            _check_plain(value, what)


def state_of(optimizer: Any) -> dict[str, NDArray[Any]]:
    """Return the optimizer's variables, by name, less its learning rate, which each worker
    tells."""
    return {
        v.name: np.array(keras.ops.convert_to_numpy(v))
        for v in optimizer.variables
        if v.name != "learning_rate"
    }


def take_state(optimizer: Any, state: dict[str, NDArray[Any]]) -> None:
    """Take those of the variables that `state` names."""
    for variable in optimizer.variables:
        if variable.name in state:
            variable.assign(state[variable.name])


def check(optimizer: Any, servers: int) -> None:
    """Refuse what servers cannot do shard by shard, or without the workers."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise _refused(f"{kind}, whose scale all steps share", "Use dtype policy mixed_bfloat16")
    if optimizer.use_ema:
        raise _refused(f"{kind}(use_ema=True)", "Remove use_ema")
    if optimizer.global_clipnorm is not None and servers > 1:
        raise _refused(
            f"{kind}(global_clipnorm=...) over {servers} servers, of which none has the whole "
            "gradient", "Use servers=1, or clipnorm",
        )  # fmt: skip
    names = [v.name for v in optimizer.variables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _refused(f"two variables of one name, {twice[0]!r}", "Give layers names of their own")


def _refused(what: str, remedy: str) -> Unsupported:
    return Unsupported(f"The servers cannot run this optimizer. Received: {what}. {remedy}.")


def _variable(held: HeldVariable) -> Any:
    """Make a variable under the worker's own path: some optimizers go by it."""
    *scopes, name = held.path.split("/")
    constraint = None
    if held.constraint is not None:
        constraint = _made(held.constraint, keras.constraints.Constraint)
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(np.zeros(held.shape), dtype=held.dtype, name=name)
    variable.constraint = constraint
    return variable


@final
class KerasServerOptimizer(ServerOptimizer):
    """One update at a time, so Keras's own count of them is right, and with it bias correction and
    schedules."""

    def __init__(self, machine: ServedMachine) -> None:
        self._machine = machine
        self._values: NDArray[Any] = np.empty(0, np.float32)
        self._optimizer: Any = None
        self._update: Any = None
        self._rate: float | None = None
        self._current: float | None = None

    def build(self, spec: bytes, values: NDArray[Any]) -> None:
        told = KerasOptimizerSpec.of(spec, values.size)
        self._optimizer, variables = make(told)
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
            refuse_garbled("a learning rate")
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
