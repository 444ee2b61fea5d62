"""torch's own BatchNorms within a Keras model: in a step they normalise by the global batch, as
Keras's do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import nn

from dream.adapters.pytorch.call_hook import CallHook, called_with, set_hook
from dream.adapters.pytorch.private import BatchNorm, check_input_dim
from dream.adapters.pytorch.update.batch_norm import Moments as Found
from dream.adapters.pytorch.update.batch_norm import check_several, normalised

Moments = Callable[[torch.Tensor], Found]
"""Finds the moments of an input over all parts."""


def norms_in(modules: Iterable[nn.Module]) -> list[BatchNorm]:
    return [m for m in modules if isinstance(m, BatchNorm)]


def synchronise(norms: Iterable[BatchNorm], moments: Callable[[], Moments | None]) -> None:
    """Have them ask for the moments of all parts, where a step offers them."""
    for norm in norms:
        set_hook(norm, _Together(norm, moments))


@final
class _Together(CallHook):
    """A norm's call."""

    def __init__(self, norm: BatchNorm, moments: Callable[[], Moments | None]) -> None:
        super().__init__(norm)
        self._moments = moments

    def __call__(self, x: torch.Tensor) -> Any:
        norm, moments = self.module, self._moments()
        assert isinstance(norm, BatchNorm)
        if moments is None or not (norm.training or norm.running_mean is None):
            return self.inner(x)

        def forward(x: torch.Tensor) -> torch.Tensor:
            check_input_dim(norm, x)
            mean, variance, count = moments(x)
            check_several(count, x)
            return normalised(norm, x, (mean, variance, count))

        return called_with(norm, forward, self.inner, x)
