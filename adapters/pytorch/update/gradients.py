"""Gradients of a strategy: how they lie over the ranks, and whether anybody has changed them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dream._errors import ConfigurationError
from dream.adapters.pytorch import private
from dream.adapters.pytorch.private import to_local, version_of


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
    """Whether plain tensors are; of none, they are."""
    norm = nn.utils.get_total_norm([g for g in gradients if g.numel()], math.inf)
    return math.isfinite(float(norm))


@dataclass(frozen=True, slots=True)
class GradientMark:
    """A gradient as it was left. version: grows with each change in place; torch does not count
    those of a cut tensor, so of these there is the sum of the rank's piece too."""

    gradient: torch.Tensor | None
    version: int
    piece: torch.Tensor | None

    @classmethod
    def of(cls, gradient: torch.Tensor | None) -> GradientMark:
        if gradient is None:
            return cls(None, 0, None)
        piece = to_local(gradient)
        return cls(gradient, version_of(gradient), None if piece is gradient else _sum(piece))

    def stays(self, now: torch.Tensor | None) -> bool:
        """Whether that is what the parameter has still."""
        if now is not self.gradient:
            return False
        if now is None:
            return True
        same = self.piece is None or self.piece.allclose(_sum(to_local(now)), 0, 0, equal_nan=True)
        return version_of(now) <= self.version and same


def _sum(piece: torch.Tensor) -> torch.Tensor:
    return piece.detach().sum(dtype=torch.float64)


@final
class GradientGuard:
    """Notes each gradient as backward leaves it."""

    def __init__(self) -> None:
        self._left: dict[nn.Parameter, GradientMark] = {}

    def watch(self, parameters: Iterable[nn.Parameter]) -> list[RemovableHandle]:
        """Note the gradients of these; until the handles are removed."""
        return [p.register_post_accumulate_grad_hook(self._note) for p in parameters]

    def clear(self) -> None:
        """A new update begins."""
        self._left.clear()

    def check(self) -> None:
        """Refuse to go on where a gradient is not as the last micro-batch left it."""
        for parameter, left in self._left.items():
            if not left.stays(parameter.grad):
                raise ConfigurationError(
                    "Between two micro-batches of an update the gradient was changed, and it is "
                    "not complete yet. Received: a parameter of shape "
                    f"{tuple(parameter.shape)} whose gradient was cleared, clipped or scaled. "
                    "Clear it by optimizer.zero_grad(), clip by clip_norm= or clip_value= of "
                    "dream.strategy, and leave scaling to precision=."
                )

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """All of them, times `factor`. DDP may have moved them to its buckets since."""
        gradients = [to_local(p.grad) for p in self._left if p.grad is not None]
        if gradients:
            private.foreach_mul_(gradients, factor)
        self.renote()

    def renote(self) -> None:
        """Note them again: what changed them is dream's own."""
        for parameter in self._left:
            self._note(parameter)

    def _note(self, parameter: nn.Parameter) -> None:
        self._left[parameter] = GradientMark.of(parameter.grad)
