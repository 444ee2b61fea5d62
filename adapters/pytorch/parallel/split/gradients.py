"""Gradients of a split model made global: over its copies, and clipped by the norm of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from dream.adapters.pytorch.parallel.split.clipping import finite_over
from dream.adapters.pytorch.update.gradients import Spread
from dream.collectives import Communicator


def average(
    parameters: Sequence[nn.Parameter], loss: torch.Tensor, twins: Communicator
) -> torch.Tensor:
    """The gradients' mean over the copies of the model; the loss likewise, which is returned. One
    call for each dtype. A copy without a gradient counts as zero; where none has one there is none.
    """
    if twins.world_size == 1:
        return loss
    trained = [p for p in parameters if p.requires_grad]
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    there = torch.tensor([float(p.grad is not None) for p in trained])
    *means, mean_loss, there = twins.all_reduce([*own, loss, there])
    missing = any(p.grad is None for p in trained)
    for index, (parameter, mean) in enumerate(zip(trained, means, strict=True)):
        if not missing or there[index]:
            parameter.grad = mean
    told: torch.Tensor = mean_loss
    return told


@final
class Staged(Spread):
    """Each parameter is one rank's alone. parts: the ranks of one copy of the model."""

    def __init__(self, parts: Communicator) -> None:
        self._parts = parts

    def clip_norm(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        _clip(parameters, largest, self._parts)

    def clip_value(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        nn.utils.clip_grad.clip_grad_value_(parameters, largest)

    def finite(self, parameters: Sequence[nn.Parameter]) -> bool | None:
        return finite_over(self._parts, [p.grad for p in parameters if p.grad is not None])


def _clip(parameters: Sequence[nn.Parameter], largest: float, parts: Communicator) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    device = gradients[0].device if gradients else torch.device("cpu")
    squares = torch.zeros((), dtype=torch.float64, device=device)
    if gradients:
        norms = torch._foreach_norm(gradients, dtype=torch.float64)
        squares = torch.stack(norms).square().sum()
    norm = parts.all_reduce(squares, "sum").sqrt()
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
