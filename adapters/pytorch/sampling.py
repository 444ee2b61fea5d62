"""The order of a loader's global batches, and this rank's part of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, final

import torch
from torch.utils.data import Sampler

from dream._partition import Share, epoch_order, global_batches, micro_shares, share_of
from dream.communication import Communicator

_AHEAD = 1024  # batches of a user's sampler that rank 0 tells at a time


@final
class SeededBatches(Sampler[list[int]]):
    """Global batches in the order that (seed, epoch) gives.

    epoch: the one that `__iter__` starts; whoever trains on it counts on.
    """

    def __init__(
        self, dataset: Sized, batch_size: int, *, shuffle: bool, drop_last: bool, seed: int
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        whole, rest = divmod(len(self._dataset), self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(
            len(self._dataset), seed=self._seed, epoch=self.epoch, shuffle=self._shuffle
        )
        batches = global_batches(order, self._batch_size, drop_last=self._drop_last)
        return (batch.tolist() for batch in batches)


Reading = Literal["by gradients", "share", "whole"]
"""share: this rank's part. whole: every sample, in the order that counts epochs."""


@final
class Pass:
    """One iteration over a loader.

    shares: in order, one for each batch drawn and not yet handed out. seeded: whose epoch this is.
    trains: whether it yields shares to train on.
    """

    def __init__(self, length: int, seeded: SeededBatches | None, *, trains: bool) -> None:
        self.length = length
        self.trains = trains
        self.shares: deque[Share] = deque()
        self._seeded = seeded
        self._asked = 0

    def ask(self) -> None:
        """A batch is asked for. With the second one the epoch counts: whoever only looks at a
        first batch does not change the order of what follows."""
        self._asked += 1
        if self._asked == 2 and self._seeded is not None:
            self._seeded.epoch += 1


def told_by_rank_0(batches: Iterable[list[int]], communicator: Communicator) -> Iterator[list[int]]:
    """Rank 0's batches on every rank: a user's sampler draws for itself, and once is enough."""
    drawn = iter(batches) if communicator.rank == 0 else iter(())
    while True:
        chunk = communicator.broadcast_object(list(islice(drawn, _AHEAD)))
        yield from chunk
        if len(chunk) < _AHEAD:
            return


@final
class DealtBatches(Sampler[list[int]]):
    """A loader's batch sampler: this rank's part of each global batch where gradients are on,
    every sample where they are off.

    source: the global batches; unless they are seeded, rank 0's are every rank's.
    told_by: all ranks, where several take the same share.
    micros: in how many micro-batches a share to train on comes, at most; asked at each pass.
    """

    def __init__(
        self,
        source: Any,
        communicator: Communicator,
        batch_size: int | None,
        told_by: Communicator | None = None,
        micros: Callable[[], int] = lambda: 1,
    ) -> None:
        self.batch_size = batch_size
        self._micros = micros
        self._source = source
        self._communicator = communicator
        self._together = told_by is not None
        self._told_by = told_by or communicator
        self._reading: Reading = "by gradients"
        self._begun: Pass | None = None

    def __len__(self) -> int:
        """Global batches, which are updates: what a schedule is reckoned in."""
        return len(self._source)

    @contextmanager
    def reading(self, reading: Reading) -> Iterator[None]:
        """How iterations that start inside read, whether gradients are on or off."""
        self._reading = reading
        try:
            yield
        finally:
            self._reading = "by gradients"

    def begun(self) -> Pass | None:
        """The pass that the last `__iter__` began; None where it reads every sample unmarked."""
        return self._begun

    def __iter__(self) -> Iterator[list[int]]:
        reading = self._reading
        if reading == "by gradients" and not torch.is_grad_enabled():
            self._begun = None
            return self._every_batch() if self._together else iter(self._source)
        seeded = self._source if isinstance(self._source, SeededBatches) else None
        counts = None if reading == "share" else seeded
        self._begun = Pass(len(self), counts, trains=reading == "by gradients")
        micros = self._micros() if self._begun.trains else 1
        return self._deal(self._begun.shares, micros, whole=reading == "whole")

    def _every_batch(self) -> Iterator[list[int]]:
        if self._told_by.world_size == 1 or isinstance(self._source, SeededBatches):
            return iter(self._source)
        return told_by_rank_0(self._source, self._told_by)

    def _deal(self, shares: deque[Share], micros: int, *, whole: bool) -> Iterator[list[int]]:
        rank, parts = self._communicator.rank, self._communicator.world_size
        batches = iter(self._source) if whole and not self._together else self._every_batch()
        if whole:
            rank, parts = 0, 1
        for batch in batches:
            share, mine = share_of(len(batch), rank, parts), batch[rank::parts]
            for part in micro_shares(share, micros) if micros > 1 else (share,):
                shares.append(part)
                taken, mine = mine[: part.count], mine[part.count :]
                # A collate function needs a sample to show its shape; the loader drops it again.
                yield taken if part.count else batch[:1]
