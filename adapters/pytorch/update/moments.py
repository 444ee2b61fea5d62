"""Means and variances of a BatchNorm's channels, whosever samples they are of."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dream._errors import ConfigurationError


def wide(x: torch.Tensor) -> torch.Tensor:
    """What is normalised in: float32 where x is of half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def along(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value for each channel, to be combined with x."""
    return values.reshape(1, -1, *(1 for _ in range(x.dim() - 2)))


def number(of: torch.Tensor) -> float:
    """A count that all ranks summed up."""
    return float(of)


def check_several(count: float, x: torch.Tensor) -> None:
    """Refuse to normalise by a single value of a channel. count: of all ranks together."""
    if count <= 1.0:
        raise ConfigurationError(
            "A batch normalisation needs two values of a channel. Received: an input of shape "
            f"{tuple(x.shape)} on this rank, and {count:.0f} values on all. Say drop_last=True, or "
            "choose a batch_size that leaves two samples for the last batch."
        )


@torch.no_grad()
def take_in(norm: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """Into the running statistics, as torch's own does. variance: of a sample, by n - 1."""
    if norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:
        momentum = 1.0 / number(norm.num_batches_tracked)
    for running, value in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.data.lerp_(value.to(running.device, running.dtype), momentum)
