"""Gradients that wait between the micro-batches of an update: nobody else may change them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dream._errors import ConfigurationError
from dream.adapters.pytorch.local import local_of


@final
class Held:
    """Notes each gradient as backward leaves it."""

    def __init__(self) -> None:
        self._left: dict[nn.Parameter, tuple[torch.Tensor | None, int]] = {}

    def watch(self, parameters: Iterable[nn.Parameter]) -> list[RemovableHandle]:
        """Note the gradients of these; until the handles are removed."""
        return [p.register_post_accumulate_grad_hook(self._note) for p in parameters]

    def clear(self) -> None:
        """A new update begins."""
        self._left.clear()

    def check(self) -> None:
        """Refuse to go on where a gradient is not as the last micro-batch left it."""
        for parameter, (gradient, version) in self._left.items():
            if parameter.grad is not gradient or (gradient is not None and _of(gradient) > version):
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
        gradient = parameter.grad
        self._left[parameter] = gradient, 0 if gradient is None else _of(gradient)


def _of(gradient: torch.Tensor) -> int:
    """A number that grows with each change in place."""
    return gradient._version
