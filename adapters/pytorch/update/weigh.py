"""A loss that the user weighs: by how many things it is the mean over."""

from __future__ import annotations

from typing import Any, final

import torch

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.update.accumulation import Updates
from dream.collectives import Communicator
from dream.data.partition import Share


def count_of(value: Any) -> float:
    """A count as a number, checked."""
    count = float(value)
    if not count >= 0.0:
        raise ConfigurationError(
            f"The count of a weighted loss must not be negative. Received: count={count}."
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
                "weigh() must be called once for each micro-batch of an update. Received: "
                f"weigh(loss, count) at micro-batch {share.micro + 1} of {share.micros}, "
                f"{'twice' if before is share else 'but not at the one before'}. Add losses up "
                "before weighing them, or remove accumulate."
            )
