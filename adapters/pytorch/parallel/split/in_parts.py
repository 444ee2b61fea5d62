"""What a rank holds a part of is not written to a file as if it were the whole.

A pickler meets a mark before the tensor's own bytes, inside the block and after it; copies pass.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from dream._errors import ConfigurationError

MARK = "_dream_in_parts"


@final
class InParts:
    """An attribute that cannot be pickled. said: why, and what to save instead."""

    def __init__(self, said: str) -> None:
        self._said = said

    def __deepcopy__(self, _: dict[int, Any]) -> InParts:
        return self

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(self._said)


@final
class StateOfStages(dict[str, Any]):
    """An optimizer's state where each rank has that of its own stages."""

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise ConfigurationError(self.said)

    @property
    def said(self) -> str:
        return (
            "This rank's optimizer has the state of its own stages, and would write that alone. "
            f"Received: the state of {len(self.get('state', {}))} parameters. On every rank, and "
            "after the block, save dict(optimizer.state_dict()) to a file of the rank's own."
        )


def said_of_module(name: str) -> str:
    return (
        "A split model cannot be pickled: each rank holds a part of it. Received: "
        f"{name}. Save strategy.full_state(model), or model.state_dict() of which "
        "each value has been made whole with .full_tensor(), on every rank."
    )


def said_of_tensor(tensor: torch.Tensor) -> str:
    """Of a tensor that is cut, or that another rank holds."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return (
            "Another rank holds the tensor, whose stage it is in, and this one would write none "
            f"of it. Received: a tensor of shape {shape}, of which nothing is here. Save "
            "strategy.full_state(model), called on every rank."
        )
    return (
        "This rank holds a part of the tensor, and would write that part alone. "
        f"Received: a tensor of shape {shape}, of which {tuple(tensor.to_local().shape)} is here. "
        "Save strategy.full_state(model); or make each tensor whole with .full_tensor(), on "
        "every rank, before rank 0 saves it."
    )


def why_not_saved(value: Any) -> str | None:
    """What is said of a value that is here in part; None where it is whole."""
    if isinstance(value, StateOfStages):
        return value.said
    if isinstance(value, nn.Module):
        parts = any(why_not_saved(parameter) for parameter in value.parameters())
        return said_of_module(type(value).__name__) if parts else None
    if isinstance(value, torch.Tensor) and (_is_cut(value) or MARK in value.__dict__):
        return said_of_tensor(value)
    return None


def mark(value: Any) -> None:
    """Have a tensor refuse to be pickled where it is cut, or on another rank."""
    if isinstance(value, torch.Tensor) and (_is_cut(value) or value.is_meta):
        setattr(value, MARK, InParts(said_of_tensor(value)))


def _is_cut(value: torch.Tensor) -> bool:
    return isinstance(value, DTensor) and not all(p == Replicate() for p in value.placements)


def mark_states(module: nn.Module) -> None:
    """Have what `state_dict()` gives refuse to be pickled where it is in parts."""
    for part in module.modules():
        if _mark_state not in part._state_dict_hooks.values():
            part.register_state_dict_post_hook(_mark_state)


def mark_optimizer(optimizer: Optimizer) -> None:
    """The same of an optimizer whose state is in DTensors."""
    optimizer.register_state_dict_post_hook(_mark_optimizer)


def _mark_state(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in (*module._parameters, *module._buffers):
        mark(state.get(prefix + name))


def _mark_optimizer(_: Optimizer, state: dict[str, Any]) -> None:
    for entries in state["state"].values():
        for value in entries.values():
            mark(value)
