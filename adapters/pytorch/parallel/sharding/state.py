"""State of which a rank holds a part: made whole, taken from whole tensors, and never written to a
file as if it were the whole.

A pickler meets a guard before the tensor's own bytes, inside the block and after it; copies pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from dream._errors import ConfigurationError
from dream.adapters.pytorch.private import (
    has_state_dict_hook,
    own_buffers,
    own_parameters,
    tree_leaves,
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
    """Say why a tensor is not saved that is cut, or that another rank holds."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return (
            "Another rank holds the tensor, whose stage it is in, and this one would write none "
            f"of it. Received: a tensor of shape {shape}, of which nothing is here. Make {_WHOLE} "
            "on every rank and save that, or keep all by strategy.save(folder, model=model)."
        )
    return (
        "This rank holds a part of the tensor, and would write that part alone. "
        f"Received: a tensor of shape {shape}, of which {tuple(tensor.to_local().shape)} is here. "
        f"Make {_WHOLE} on every rank and save that, or keep all by "
        "strategy.save(folder, model=model, optimizer=optimizer)."
    )


def reason_not_saved(value: Any) -> str | None:
    """Say why a value that is here in part is not saved; None where it is whole."""
    if isinstance(value, StageOptimizerState):
        return value.message
    if isinstance(value, nn.Module):
        parts = any(reason_not_saved(parameter) for parameter in value.parameters())
        return module_message(type(value).__name__) if parts else None
    if isinstance(value, torch.Tensor) and (_is_cut(value) or GUARD in value.__dict__):
        return tensor_message(value)
    return None


def saving_wholes(save: Callable[..., None]) -> Callable[..., None]:
    """Have `torch.save` write whole tensors only: a file of shards would be read as a model. It
    raises on every rank, where a pickler would on the one that writes."""

    @wraps(save)
    def save_whole(obj: object, *args: Any, **kwargs: Any) -> None:
        for leaf in tree_leaves(obj):
            reason = reason_not_saved(leaf)
            if reason is not None:
                raise ConfigurationError(reason)
        save(obj, *args, **kwargs)

    return save_whole


def guard_tensor(value: Any) -> None:
    """Have a tensor refuse to be pickled where it is cut, or on another rank."""
    if isinstance(value, torch.Tensor) and (_is_cut(value) or value.is_meta):
        setattr(value, GUARD, PickleGuard(tensor_message(value)))


def _is_cut(value: torch.Tensor) -> bool:
    return isinstance(value, DTensor) and not all(p == Replicate() for p in value.placements)


def guard_state_dict(module: nn.Module) -> None:
    """Have what `state_dict()` gives refuse to be pickled where it is in parts."""
    for part in module.modules():
        if not has_state_dict_hook(part, _guard_state):
            part.register_state_dict_post_hook(_guard_state)


def guard_optimizer_state(optimizer: Optimizer) -> None:
    """Have the state of an optimizer refuse to be pickled where it is in DTensors."""
    optimizer.register_state_dict_post_hook(_guard_optimizer)


def _guard_state(module: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    for name, _ in (*own_parameters(module), *own_buffers(module)):
        guard_tensor(state.get(prefix + name))


def _guard_optimizer(_: Optimizer, state: dict[str, Any]) -> None:
    for entries in state["state"].values():
        for value in entries.values():
            guard_tensor(value)


def full_state(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return every tensor of the model's state by name. Each rank calls it, and gets all of it."""
    return {name: array_of(_gathered(value)) for name, value in model.state_dict().items()}


def _gathered(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
