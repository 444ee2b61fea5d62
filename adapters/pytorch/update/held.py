"""Gradients that wait between the micro-batches of an update: nobody else may change them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dream._errors import ConfigurationError
from dream.adapters.pytorch.local import local_of


@dataclass(frozen=True, slots=True)
class Left:
    """A gradient as it was left. version: grows with each change in place; torch does not count
    those of a cut tensor, so of these there is the sum of the rank's piece too."""

    gradient: torch.Tensor | None
    version: int
    piece: torch.Tensor | None

    @classmethod
    def of(cls, gradient: torch.Tensor | None) -> Left:
        if gradient is None:
            return cls(None, 0, None)
        piece = local_of(gradient)
        return cls(gradient, gradient._version, None if piece is gradient else _sum(piece))

    def stays(self, now: torch.Tensor | None) -> bool:
        """Whether that is what the parameter has still."""
        if now is not self.gradient:
            return False
        if now is None:
            return True
        same = self.piece is None or self.piece.allclose(_sum(local_of(now)), 0, 0, equal_nan=True)
        return now._version <= self.version and same


def _sum(piece: torch.Tensor) -> torch.Tensor:
    return piece.detach().sum(dtype=torch.float64)


@final
class Held:
    """Notes each gradient as backward leaves it."""

    def __init__(self) -> None:
        self._left: dict[nn.Parameter, Left] = {}

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
        gradients = [local_of(p.grad) for p in self._left if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)
        self.renote()

    def renote(self) -> None:
        """What changed gradients is dream's own."""
        for parameter in self._left:
            self._note(parameter)

    def _note(self, parameter: nn.Parameter) -> None:
        self._left[parameter] = Left.of(parameter.grad)
