"""A loader's shares, held against what ranks of another framework read."""

from __future__ import annotations

from typing import Any, Protocol, Self, final

from dream.adapters.pytorch.evaluation import targets_of
from dream.collectives import Communicator
from dream.mixed.order import Targets
from dream.mixed.resync import Resyncs


class Batches(Protocol):
    def __next__(self) -> Any: ...

    def __len__(self) -> int: ...


@final
class Compared:
    """An iterator that compares after its first batch and at its end, where weights settle."""

    def __init__(self, batches: Batches, communicator: Communicator, resyncs: Resyncs) -> None:
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
