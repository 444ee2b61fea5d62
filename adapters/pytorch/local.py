"""What this rank holds of a tensor."""

from __future__ import annotations

import torch


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's piece of a DTensor, as it lies in memory; any other tensor itself. Asked of the
    tensor, since DTensors are slow to import for those who have none."""
    piece: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return piece
