"""What is in a private module of torch's, though it is documented: how batches are collated."""

from __future__ import annotations

import torch
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map


def tensors_are_stacked() -> bool:
    """Whether `default_collate` makes a batch of tuples of tensors as torch does, and not as a
    script has it, which may add types to the map."""
    taken = any(issubclass(tuple, kind) for kind in default_collate_fn_map)
    return not taken and default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn
