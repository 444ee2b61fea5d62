"""Means over things that the ranks hold unequal numbers of: tokens, unmasked pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from dream._errors import ConfigurationError
from dream.collectives import Communicator


def count_of(value: Any) -> float:
    """A count as a number, checked."""
    count = float(value)
    if not count >= 0.0:
        raise ConfigurationError(
            f"A loss cannot be a mean over fewer than no things. Received: count={count}."
        )
    return count


def weight_of(communicator: Communicator, count: float) -> float:
    """What this rank's mean counts for: count * ranks / the count of all ranks."""
    total = float(communicator.all_reduce(torch.tensor(count, dtype=torch.float64), op="sum"))
    return count * communicator.world_size / total if total else 0.0


@final
class BatchWeight:
    """The weight of a batch in an explicit step.

    weight: `weight(*batch)` counts the batch's things; None goes by the loader's share, or takes
        equal shares.
    """

    def __init__(
        self,
        communicator: Communicator,
        share: Callable[[tuple[Any, ...]], float],
        weight: Callable[..., Any] | None,
    ) -> None:
        self._communicator = communicator
        self._share = share
        self._weight = weight

    def __call__(self, batch: tuple[Any, ...]) -> float:
        if self._weight is None:
            return self._share(batch)
        return weight_of(self._communicator, count_of(self._weight(*batch)))
