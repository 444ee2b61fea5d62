"""State of which a rank holds a part: made whole, and never written to a file as if it were the
whole.

What is in shards is pickled whole (`saving`). Of what is not, a pickler meets a guard before the
bytes, inside the block and after it; copies pass.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn, final

import torch
from numpy.typing import NDArray
from torch import nn

from dream._errors import ConfigurationError
from dream.adapters.pytorch.private import (
    has_state_dict_hook,
    own_buffers,
    own_parameters,
    to_whole,
)
from dream.adapters.pytorch.tensors import array_of

_WHOLE = "{n: torch.from_numpy(x) for n, x in strategy.full_state(model).items()}"
GUARD = "_dream_in_parts"


@final
class PickleGuard:
    """An attribute that cannot be pickled. message: why, and what to save instead."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __deepcopy__(self, _: dict[int, Any]) -> PickleGuard:
        return self

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(self._message)


@final
class StageOptimizerState(dict[str, Any]):
    """An optimizer's state where each rank has that of its own stages."""

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise ConfigurationError(self.message)

    @property
    def message(self) -> str:
        return (
            "This rank's optimizer has the state of its own stages, and would write that alone. "
            f"Received: the state of {len(self.get('state', {}))} parameters. On every rank, and "
            "after the block, save dict(optimizer.state_dict()) to a file of the rank's own."
        )


def module_message(name: str) -> str:
    return (
        "A split model cannot be pickled: each rank holds a part of it. Received: "
        f"{name}. Make {_WHOLE} on every rank and save that, or keep all by "
        "strategy.save(folder, model=model, optimizer=optimizer)."
    )


def tensor_message(tensor: torch.Tensor) -> str:
    """Say why a tensor is not saved that another rank holds."""
    return (
        "Another rank holds the tensor, whose stage it is in, and this one would write none "
        f"of it. Received: a tensor of shape {tuple(tensor.shape)}, of which nothing is here. Make "
        f"{_WHOLE} on every rank and save that, or keep all by "
        "strategy.save(folder, model=model)."
    )


def guard_tensor(value: Any) -> None:
    """Have a tensor refuse to be pickled where it is on another rank."""
    if isinstance(value, torch.Tensor) and value.is_meta:
        setattr(value, GUARD, PickleGuard(tensor_message(value)))


def guard_state_dict(module: nn.Module) -> None:
    """Have what `state_dict()` gives refuse to be pickled where another rank holds it."""
    for part in module.modules():
        if not has_state_dict_hook(part, _guard_state):
            part.register_state_dict_post_hook(_guard_state)


def _guard_state(module: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    for name, _ in (*own_parameters(module), *own_buffers(module)):
        guard_tensor(state.get(prefix + name))


def full_state(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return every tensor of the model's state by name. Each rank calls it, and gets all of it."""
    return {name: array_of(to_whole(value)) for name, value in model.state_dict().items()}
