"""The loss that a backward pass starts from, as the user computed it: what a GradScaler multiplied
is seen without its scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, final

import torch
from torch.utils._pytree import tree_leaves

_KEY = "dream.scaled"
"""Of a graph node's metadata, which lives as long as the node does."""
_NODES = 64
"""How far the graph is looked through, from its end, for what was scaled."""


@final
@dataclass(frozen=True, slots=True)
class Scaled:
    """What a scaler was given, and the scaler."""

    loss: torch.Tensor
    scaler: torch.amp.GradScaler


@final
class Losses:
    """Of one process."""

    def __init__(self) -> None:
        self._used = False

    def scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`GradScaler.scale`, which remembers what it was given."""

        @wraps(original)
        def wrapped(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            made = original(scaler, outputs)
            for before, after in zip(tree_leaves(outputs), tree_leaves(made), strict=True):
                if after is not before and after.grad_fn is not None:
                    self._used = True
                    after.grad_fn.metadata[_KEY] = Scaled(before.detach(), scaler)
            return made

        return wrapped

    def number(self, tensors: Any) -> torch.Tensor | None:
        """The sum of what backward starts from, where that is numbers; None elsewhere."""
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if not roots or any(root.numel() != 1 for root in roots):
            return None
        first, *rest = (self._unscaled(root).reshape(()).clone() for root in roots)
        return sum(rest, first)

    def _unscaled(self, root: torch.Tensor) -> torch.Tensor:
        """What was scaled itself; where more was done to it, such as a division by the number of
        micro-batches, the outcome over the scale."""
        end: Any = root.grad_fn
        behind = _scaled_behind(end) if self._used else None
        if behind is None:
            return root.detach()
        direct = end.metadata.get(_KEY) is behind
        return behind.loss if direct else root.detach() / behind.scaler.get_scale()


def _scaled_behind(end: Any) -> Scaled | None:
    """What was scaled of the graph near its end, the nearest first."""
    left = [end]
    for _ in range(_NODES):
        node = left.pop(0) if left else None
        if node is None:
            return None
        found = node.metadata.get(_KEY)
        if isinstance(found, Scaled):
            return found
        left += [after for after, _ in node.next_functions if after is not None]
    return None
