"""A split model's parameters and buffers as whole arrays."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.tensor import DTensor

from dream.adapters.pytorch.tensors import array_of


def whole(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Every tensor of the model's state by name; each rank calls it, and gets all of it."""
    return {name: array_of(_gathered(value)) for name, value in model.state_dict().items()}


def _gathered(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
