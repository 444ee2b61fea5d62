"""Passes whose targets ranks of two frameworks compare."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np
import torch

from dream.adapters.pytorch.private import tree_leaves
from dream.collectives import Communicator
from dream.mixed.order import Targets
from dream.mixed.resync import Resyncs


def targets_of(batch: Any) -> np.ndarray[Any, Any]:
    """Return what the loss of a batch is taken against: its last tensor."""
    last = [x for x in tree_leaves(batch) if isinstance(x, torch.Tensor)][-1].detach().cpu()
    return (last.float() if last.is_floating_point() else last).numpy()


@final
class ComparedIterator:
    """An iterator that compares after its first batch and at its end, where weights settle."""

    def __init__(self, batches: Any, communicator: Communicator, resyncs: Resyncs) -> None:
        self._resyncs = resyncs
        self._batches = batches
        self._communicator = communicator
        self._seen = Targets()
        self._any = False

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._seen.compare(self._communicator, "an epoch's batches")
            self._resyncs.settle()
            raise
        self._seen.add(self._communicator.rank, targets_of(batch))
        if not self._any:
            self._any = True
            self._seen.compare(self._communicator, "the first batch")
        return batch
