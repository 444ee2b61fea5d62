"""The explicit step: what is done with each micro-batch, and once an update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from dream._adapter import Step
from dream.adapters.pytorch.update.updates import Updates

Batch = tuple[Any, ...]
Cuts = Callable[[Batch], Sequence[tuple[Batch, float]]]
"""A rank's batch -> its micro-batches, each with what its mean loss counts for."""


class Passes(ABC):
    """A model's passes forward and backward, which leave the global gradient in its parameters."""

    @abstractmethod
    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        """Those of one micro-batch, whose mean loss counts for `weight`. first, last: of an
        update; the gradient is global after the last one."""

    @abstractmethod
    def told(self) -> torch.Tensor:
        """The global mean loss of the last update, shape ()."""


def step_of(passes: Passes, optimizer: Optimizer, cut: Cuts, updates: Updates | None) -> Step:
    """updates: None where a batch is not cut."""
    if updates is not None:
        updates.leave_to_step()

    def step(*batch: Any) -> torch.Tensor:
        micros = cut(batch)
        if updates is not None:
            updates.begin_whole()
        optimizer.zero_grad(set_to_none=True)
        for index, (micro, weight) in enumerate(micros):
            passes.run(micro, weight, first=index == 0, last=index == len(micros) - 1)
        optimizer.step()
        return passes.told()

    return step


def uncut(weigh: Callable[[Batch], float]) -> Cuts:
    """The batch as it is."""
    return lambda batch: [(batch, weigh(batch))]
