"""A loss, as the user computed it; and weighed by how many things it is the mean over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, final

import torch

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.update.accumulation import Updates
from dream.collectives import Communicator
from dream.data.partition import Share

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

    def number(self, tensors: Any) -> torch.Tensor | None:
        """The sum of what backward starts from, where that is numbers; None elsewhere."""
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if not roots or any(root.numel() != 1 for root in roots):
            return None
        first, *rest = (self._unscaled(root).reshape(()).clone() for root in roots)
        return sum(rest, first)

    def _unscaled(self, root: torch.Tensor) -> torch.Tensor:
        """Return what was scaled itself; where more was done to it, such as a division by the
        number of micro-batches, the outcome over the scale."""
        end: Any = root.grad_fn
        behind = _scaled_behind(end) if self._used else None
        if behind is None:
            return root.detach()
        direct = end.metadata.get(_KEY) is behind
        return behind.loss if direct else root.detach() / behind.scaler.get_scale()


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


def count_of(value: Any) -> float:
    """A count as a number, checked."""
    count = float(value)
    if not count >= 0.0:
        raise ConfigurationError(
            f"A loss cannot be a mean over fewer than no things. Received: count={count}."
        )
    return count


def weight_of(communicator: Communicator, count: float) -> float:
    """Weigh this rank's mean: count * ranks / the count of all ranks."""
    total = float(communicator.all_reduce(torch.tensor(count, dtype=torch.float64), op="sum"))
    return count * communicator.world_size / total if total else 0.0


@final
class MicroWeights:
    """Sums until the last micro-batch, and there the mean over all."""

    def __init__(self, communicator: Communicator, updates: Updates) -> None:
        self._communicator, self._updates = communicator, updates
        self._at: Share | None = None
        self._counted = 0.0

    def weigh(self, loss: Any, count: float) -> Any:
        """`loss`, a mean over `count` things, for backward."""
        share = self._updates.share
        self._check(share)
        self._counted = count if share.micro == 0 else self._counted + count
        if not share.last:
            return loss * count
        scale = weight_of(self._communicator, self._counted) / (self._counted or 1.0)
        self._updates.held.scale(scale)
        return loss * (count * scale)

    def _check(self, share: Share) -> None:
        before, self._at = self._at, share
        if before is share or (share.micro and (before is None or before.micro + 1 != share.micro)):
            raise Unsupported(
                "One loss is weighed for each micro-batch of an update. Received: "
                f"weigh(loss, count) at micro-batch {share.micro + 1} of {share.micros}, "
                f"{'twice' if before is share else 'but not at the one before'}. Add losses up "
                "before weighing them, or leave accumulate out."
            )
