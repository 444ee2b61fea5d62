"""L-BFGS, which takes all parameters for one long vector: it is made whole on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from dream._log import logger
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.parallel.sharding.parameters import shard_like
from dream.adapters.pytorch.private import LBFGS_ADDS, LBFGS_GATHERS, to_local, to_whole


def take_vectors(optimizer: Optimizer) -> None:
    """Have an L-BFGS gather its gradients and step shards, and say what else shards change; nothing
    for others."""
    if type(optimizer).__name__ == "Muon":
        logger.info(
            "Muon makes its matrices orthogonal in bfloat16: under a sharded model those sums are "
            "rounded in another order, so its weights are those of one device to some 1e-3, not to "
            "1e-6; 'mirrored' keeps them"
        )
    if isinstance(optimizer, LBFGS):
        logger.info(
            "L-BFGS looks at all parameters at once: its history is whole on every rank, and not "
            "in shards"
        )
        setattr(optimizer, LBFGS_GATHERS, MethodType(_gathered, optimizer))
        setattr(optimizer, LBFGS_ADDS, MethodType(_add, optimizer))


def _gathered(optimizer: Optimizer) -> torch.Tensor:
    return torch.cat([_vector(parameter) for parameter in parameters_of(optimizer)])


def _vector(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return to_local(parameter).new_zeros(parameter.numel())
    return to_whole(gradient).reshape(-1)


def _add(optimizer: Optimizer, size: Any, direction: torch.Tensor) -> None:
    parameters: Sequence[nn.Parameter] = parameters_of(optimizer)
    parts = direction.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        own = to_local(shard_like(part.view(parameter.shape), parameter))
        to_local(parameter).add_(own, alpha=size)
