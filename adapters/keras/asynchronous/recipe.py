"""What a server must know of a Keras optimizer to run it over its shard."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from dream._errors import Unsupported
from dream.adapters.keras import private


@dataclass(frozen=True)
class Held:
    """A variable of the shard. constraint: Keras's description, or None; decays: whether weight
    decay acts on it."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    constraint: Any
    decays: bool


@dataclass(frozen=True)
class Recipe:
    """kind, config: the optimizer's class and what makes another; state: its variables, by
    name."""

    kind: type[Any]
    config: dict[str, Any]
    variables: list[Held]
    state: dict[str, NDArray[Any]]


def recipe(optimizer: Any, shard: Sequence[Any]) -> bytes:
    """The optimizer as the server of some variables needs it."""
    held = [
        Held(
            v.path,
            tuple(v.shape),
            str(v.dtype),
            None if v.constraint is None else keras.constraints.serialize(v.constraint),
            private.decays(optimizer, v),
        )
        for v in shard
    ]
    made = Recipe(type(optimizer), optimizer.get_config(), held, state_of(optimizer))
    return pickle.dumps(made)


def made_of(told: Recipe) -> tuple[Any, list[Any]]:
    """(optimizer, variables), on a server."""
    variables = [_variable(held) for held in told.variables]
    optimizer = told.kind.from_config(dict(told.config))
    left_out = [v for v, held in zip(variables, told.variables, strict=True) if not held.decays]
    if left_out:
        optimizer.exclude_from_weight_decay(var_list=left_out)
    optimizer.build(variables)
    take_state(optimizer, told.state)
    return optimizer, variables


def load(data: bytes) -> Any:
    """What a worker of this job has sent: it knows the job's token, and runs the same script."""
    try:
        return pickle.loads(data)
    except (AttributeError, ImportError, pickle.UnpicklingError) as error:
        raise Unsupported(
            f"The server cannot make the workers' optimizer. Received: {error}. Define its class "
            "in a module, or in the script before the block, so that the server knows it too."
        ) from error


def state_of(optimizer: Any) -> dict[str, NDArray[Any]]:
    """The optimizer's variables, by name; less its learning rate, which each worker tells."""
    return {
        v.name: np.array(keras.ops.convert_to_numpy(v))
        for v in optimizer.variables
        if v.name != "learning_rate"
    }


def take_state(optimizer: Any, state: dict[str, NDArray[Any]]) -> None:
    """Those of the variables that `state` names."""
    for variable in optimizer.variables:
        if variable.name in state:
            variable.assign(state[variable.name])


def check(optimizer: Any, servers: int) -> None:
    """Refuse what servers cannot do shard by shard, or without the workers."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise _refused(f"{kind}, whose scale all steps share", "Use dtype policy mixed_bfloat16")
    if optimizer.use_ema:
        raise _refused(f"{kind}(use_ema=True)", "Leave use_ema out")
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


def _variable(held: Held) -> Any:
    """Under the worker's own path: some optimizers go by it."""
    *scopes, name = held.path.split("/")
    constraint = None if held.constraint is None else keras.constraints.get(held.constraint)
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(np.zeros(held.shape), dtype=held.dtype, name=name)
    variable.constraint = constraint
    return variable
