"""How the gradients of a strategy's parameters lie over its ranks: what a norm is taken of, and
what all ranks must decide alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import nn


class Spread(ABC):
    """Gradients are complete, and every rank calls, with its own."""

    @abstractmethod
    def clip_norm(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        """Scale the gradients so that their norm over all parts is `largest` at most."""

    @abstractmethod
    def clip_value(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        """No element is larger than `largest` in absolute value."""

    @abstractmethod
    def finite(self, parameters: Sequence[nn.Parameter]) -> bool | None:
        """Whether every gradient is finite in all its parts; None where there is none at all."""


@final
class Whole(Spread):
    """Every rank has all of them, and the same."""

    def clip_norm(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        nn.utils.clip_grad.clip_grad_norm_(parameters, largest)

    def clip_value(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        nn.utils.clip_grad.clip_grad_value_(parameters, largest)

    def finite(self, parameters: Sequence[nn.Parameter]) -> bool | None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        return is_finite(gradients) if gradients else None


def is_finite(gradients: Sequence[torch.Tensor]) -> bool:
    """Of plain tensors; of none, they are."""
    norm = nn.utils.get_total_norm([g for g in gradients if g.numel()], math.inf)
    return math.isfinite(float(norm))
