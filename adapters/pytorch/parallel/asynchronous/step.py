"""The explicit training step of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dream._adapter import Step
from dream.adapters.pytorch.parallel.asynchronous.training import Training
from dream.adapters.pytorch.step import check_scalar
from dream.adapters.pytorch.weighing import count_of
from dream.data.partition import split


def pushed_step(
    training: Training,
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    weight: Callable[..., Any] | None,
) -> Step:
    """The loop's five lines, with a push for the fifth. The value is the mean loss of the batch:
    this worker's own, or in step with the others that of all."""

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(batch)
        training.ready()
        optimizer.zero_grad(set_to_none=True)
        value = check_scalar(loss(model(*inputs), target))
        value.backward()
        counted = None if weight is None else count_of(weight(*batch))
        mean = training.push(optimizer, value.item(), counted)
        return torch.tensor(mean, dtype=value.dtype, device=value.device)

    return step
