"""What a module gives that a backward pass may begin at: its outputs, those in objects of the
script's own (a dataclass, a distribution), and, where it returns none, what it leaves in
attributes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dream.adapters.pytorch.loss.coupling.origins import tensors_of, tensors_within

_TORCH_S = frozenset(vars(nn.Module()))


def given_by(module: nn.Module, output: Any) -> list[torch.Tensor]:
    """Return them, without those that are of no use to a backward pass."""
    found = [x for x in tensors_within(output) if x.requires_grad]
    if found or not any(p.requires_grad for p in module.parameters()):
        return found
    held = (value for part in module.modules() for value in _attributes(part))
    return [x for each in held for x in tensors_of(each) if x.requires_grad and not x.is_leaf]


def _attributes(part: nn.Module) -> list[Any]:
    return [value for name, value in vars(part).items() if name not in _TORCH_S]
