"""The explicit training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from dream._adapter import Step
from dream._errors import ConfigurationError
from dream.adapters.pytorch.parallel.ddp.root import Root
from dream.adapters.pytorch.parallel.mixed.root import MixedRoot
from dream.adapters.pytorch.parallel.mixed.told_loss import ToldLoss
from dream.adapters.pytorch.passes import Batch, Passes
from dream.adapters.pytorch.update.scaling import Scaling
from dream.data.partition import split


def plain_step(model: nn.Module, loss: Callable[..., Any], optimizer: Optimizer) -> Step:
    """One device: the loop's own five lines."""

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(batch)
        optimizer.zero_grad(set_to_none=True)
        value = check_scalar(loss(model(*inputs), target))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


@final
class Carried(Passes):
    """Many ranks under DDP. The loss travels in the gradients' own bucket, with the last
    micro-batch: backward is started from it and from a parameter of no other use, whose gradient
    it is, and DDP averages that with the rest."""

    def __init__(self, root: Root, loss: Callable[..., Any], scaling: Scaling | None) -> None:
        self._root, self._loss = root, loss
        self._backward = torch.autograd.backward if scaling is None else scaling.backward

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        inputs, target = split(batch)
        output, carried = self._root.call_with_carrier(
            inputs, empty=weight == 0.0, first=first, last=last
        )
        value = check_scalar(self._loss(output, target))
        if weight != 1.0:
            value = value * weight
        self._backward((value, carried), (None, value.detach().to(carried.dtype)))

    def told(self) -> torch.Tensor:
        return self._root.carried


def mixed_step(
    root: MixedRoot,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    count: Callable[[tuple[Any, ...]], float],
    told: ToldLoss,
) -> Step:
    """Ranks of two frameworks. count: how many things the loss of a batch is the mean over."""

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(batch)
        optimizer.zero_grad(set_to_none=True)
        value = check_scalar(loss(root.call_counted(count(batch), inputs, {}), target))
        with told.said(value):
            value.backward()
        optimizer.step()
        return root.mean_loss

    return step


def check_scalar(value: Any) -> torch.Tensor:
    """The loss of a batch is one number."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ConfigurationError(
            "The loss of a batch must be one number, the mean over its samples. Received: "
            f"{getattr(value, 'shape', type(value).__name__)}. Take its mean."
        )
    return value if value.dim() == 0 else value.reshape(())
