"""A loss, as the user computed it, whatever a scaler made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, final

import torch

from dream.adapters.pytorch.loss.calls import LossMessage, is_late
from dream.adapters.pytorch.private import tree_leaves

_KEY = "dream.scaled"
"""A key of a graph node's metadata, which lives as long as the node does."""
_NODES = 64
"""Nodes that are looked through, from the graph's end, for what was scaled."""


@final
@dataclass(frozen=True, slots=True)
class Scaled:
    """A loss that a scaler was given, and the scaler."""

    loss: torch.Tensor
    scaler: torch.amp.GradScaler


@final
class LossObserver:
    """Sees the losses of one process, whose scales it knows."""

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

    def number(self, tensors: Any) -> torch.Tensor | LateLoss | None:
        """The sum of what backward starts from, where that is numbers; None elsewhere. Where a
        message goes along, backward makes the number the global one, and it is read later."""
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        roots = [root for root in given if not isinstance(root, LossMessage)]
        if not roots or any(root.numel() != 1 for root in roots):
            return None
        if len(roots) == 1 and (len(given) > 1 or is_late(roots[0])):
            return LateLoss(roots[0].detach(), self._scale(roots[0]))
        first, *rest = (self._unscaled(root).reshape(()).clone() for root in roots)
        return sum(rest, first)

    def _scale(self, root: torch.Tensor) -> float:
        behind = _scaled_behind(root.grad_fn) if self._used else None
        return 1.0 if behind is None else behind.scaler.get_scale()

    def _unscaled(self, root: torch.Tensor) -> torch.Tensor:
        """Return what was scaled itself; where more was done to it, such as a division by the
        number of micro-batches, the outcome over the scale."""
        end: Any = root.grad_fn
        behind = _scaled_behind(end) if self._used else None
        if behind is None:
            return root.detach()
        direct = end.metadata.get(_KEY) is behind
        return behind.loss if direct else root.detach() / behind.scaler.get_scale()


@final
@dataclass(frozen=True, slots=True)
class LateLoss:
    """A loss that is global once backward has ended; `float` reads it. scale: what it was
    multiplied by."""

    value: torch.Tensor
    scale: float

    def __float__(self) -> float:
        return float(self.value) / self.scale


def _scaled_behind(end: Any) -> Scaled | None:
    """Find what was scaled near the graph's end, the nearest first."""
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
