"""A model's parameters and buffers as arrays."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn


def whole(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Every tensor of the model's state by name, where each rank holds all of it."""
    return {name: array_of(value) for name, value in model.state_dict().items()}


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy that NumPy can hold: bfloat16 becomes float32."""
    value = tensor.detach().cpu()
    if value.dtype is torch.bfloat16:
        value = value.float()
    array: NDArray[Any] = value.numpy().copy()
    return array
