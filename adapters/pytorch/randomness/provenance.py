"""Whether a tensor is computed from parameters alone: what is drawn for it is no sample's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_LONGEST = 32
_SHAPES = frozenset(
    [
        "Alias",
        "Clone",
        "Expand",
        "Permute",
        "Reshape",
        "Select",
        "Slice",
        "Squeeze",
        "T",
        "ToCopy",
        "Transpose",
        "UnsafeView",
        "Unsqueeze",
        "View",
        "WeightNormInterface",
    ]
)
"""Operations that one tensor goes through."""


def of_parameters(x: Any) -> bool:
    """Whether it is a parameter, or made of parameters by what changes only shapes or types."""
    if isinstance(x, nn.Parameter):
        return True
    if not isinstance(x, torch.Tensor) or not x.requires_grad:
        return False
    if x.grad_fn is None:
        return False
    waiting, seen = [x.grad_fn], 0
    while waiting:
        node, seen = waiting.pop(), seen + 1
        name = node.name().partition("Backward")[0]
        if name == "torch::autograd::AccumulateGrad":
            continue
        if seen > _LONGEST or name not in _SHAPES:
            return False
        waiting += [parent for parent, _ in node.next_functions if parent is not None]
    return True
