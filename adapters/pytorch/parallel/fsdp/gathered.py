"""The gradient of a parameter that is gathered, from a call of its module to its backward pass.

FSDP2 gives it to the shards, and what is gathered has none. A loop that clears gradients once it
has called the model (`model.zero_grad()` before `loss.backward()`), or that looks at what there is,
means that of the shards.
"""

from __future__ import annotations

import sys
from typing import Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dream.adapters.pytorch.parallel.sharding.parameters import shard_like

_OWN: Any = torch.Tensor.grad
_WITHIN = ("dream.", "torch.distributed.", "torch.autograd.")
"""Whose code means the gradient that autograd leaves in what is gathered."""


@final
class Gathered(nn.Parameter):
    """One of them, for as long as it is a unit's."""

    shards: nn.Parameter

    @property
    def grad(self) -> Any:
        own = _OWN.__get__(self)
        return own if own is not None or _is_within() else self.shards.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if _is_within():
            _OWN.__set__(self, value)
            return
        _OWN.__set__(self, None)
        whole = value is not None and not isinstance(value, DTensor)
        self.shards.grad = shard_like(value, self.shards) if whole else value

    @grad.deleter
    def grad(self) -> None:
        _OWN.__set__(self, None)
        self.shards.grad = None


def stand_for(parameter: nn.Parameter, shards: nn.Parameter) -> None:
    """Have a parameter's gradient, as a script sees it, be that of its shards."""
    if type(parameter) is nn.Parameter:
        vars(parameter)["shards"] = shards
        parameter.__class__ = Gathered


def _is_within() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__")).startswith(_WITHIN)
