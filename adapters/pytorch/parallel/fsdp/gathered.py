"""The gradient of a parameter that is gathered, from a call of its module to its backward pass.

FSDP2 gives it to the shards, and what is gathered has none. A loop that clears gradients once it
has called the model (`model.zero_grad()` before `loss.backward()`), or that looks at what there is,
means that of the shards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import currentframe
from typing import Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakTensorKeyDictionary

from dream.adapters.pytorch import private
from dream.adapters.pytorch.parallel.sharding.parameters import shard_like

_OWN: Any = torch.Tensor.grad
_WITHIN = ("dream.", "torch.distributed.", "torch.autograd.")
"""Whose code means the gradient that autograd leaves in what is gathered."""
_shards: Any = WeakTensorKeyDictionary()


@final
class Gathered(nn.Parameter):
    """Takes the gradient of one gathered parameter. What is compiled takes no such: there
    `clearing` alone helps."""

    @property
    def grad(self) -> Any:
        own = _OWN.__get__(self)
        return own if own is not None or _is_within() else _shards[self].grad

    @grad.setter
    def grad(self, value: Any) -> None:
        _OWN.__set__(self, value if _is_within() else None)
        if not _is_within():
            whole = value is not None and not isinstance(value, DTensor)
            shards = _shards[self]
            shards.grad = shard_like(value, shards) if whole else value

    @grad.deleter
    def grad(self) -> None:
        _OWN.__set__(self, None)
        _shards[self].grad = None


def stand_for(parameter: nn.Parameter, shards: nn.Parameter) -> None:
    """Have a parameter's gradient, as a script sees it, be that of its shards."""
    _shards[parameter] = shards
    kind = nn.Parameter if private.compiles() else Gathered
    if type(parameter) is not kind and type(parameter) in (nn.Parameter, Gathered):
        parameter.__class__ = kind


def clearing(clear: Callable[..., None]) -> Callable[..., None]:
    """`Module.zero_grad` of what is gathered."""

    @wraps(clear)
    def wrapped(module: nn.Module, set_to_none: bool = True) -> None:
        clear(module, set_to_none)
        for parameter in module.parameters():
            shards = _shards.get(parameter)
            if shards is None or shards.grad is None:
                continue
            if set_to_none:
                shards.grad = None
            else:
                shards.grad.zero_()

    return wrapped


def _is_within() -> bool:
    frame = currentframe()
    for _ in range(2):  # past this and the property
        frame = None if frame is None else frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(_WITHIN)
