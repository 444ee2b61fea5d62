"""What a module gives that a backward pass may begin at: its outputs, those in objects of the
script's own (a dataclass, a distribution), and, where it returns none, what it leaves in
attributes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dream._log import say_once
from dream.adapters.pytorch.loss.coupling.origins import tensors_of, tensors_within

_TORCH_S = frozenset(vars(nn.Module()))


def given_by(module: nn.Module, output: Any) -> list[torch.Tensor]:
    """Return them, without those that are of no use to a backward pass."""
    found = [x for x in tensors_within(output) if x.requires_grad]
    if found or not any(p.requires_grad for p in module.parameters()):
        return found
    held = (value for part in module.modules() for value in _attributes(part))
    return [x for each in held for x in tensors_of(each) if x.requires_grad and not x.is_leaf]


def tell_given_nowhere(module: nn.Module, output: Any) -> None:
    """Say once where a model that trains was called for what it leaves elsewhere."""
    trains = module.training and any(p.requires_grad for p in module.parameters())
    if trains and not tensors_within(output):
        say_once(
            f"what {type(module).__name__} gives is neither returned nor in an attribute of it, so "
            "that its loss counts as a mean over this rank's rows, and its own parameters may not "
            "be gathered for backward. Return it from forward, or use 'mirrored'"
        )


def _attributes(part: nn.Module) -> list[Any]:
    return [value for name, value in vars(part).items() if name not in _TORCH_S]
