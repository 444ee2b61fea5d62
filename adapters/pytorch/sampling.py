"""The order of a loader's global batches, and this rank's part of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any, final

import torch
from torch.utils.data import Sampler

from dream._adapter import Communicator
from dream._partition import Share, epoch_order, global_batches, share_of

_AHEAD = 1024  # batches of a user's sampler that rank 0 tells at a time


@final
class SeededBatches(Sampler[list[int]]):
    """Global batches in the order that (seed, epoch) gives; `__iter__` starts the next epoch."""

    def __init__(
        self, dataset: Sized, batch_size: int, *, shuffle: bool, drop_last: bool, seed: int
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        whole, rest = divmod(len(self._dataset), self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(
            len(self._dataset), seed=self._seed, epoch=self._epoch, shuffle=self._shuffle
        )
        if torch.is_grad_enabled():
            self._epoch += 1
        batches = global_batches(order, self._batch_size, drop_last=self._drop_last)
        return (batch.tolist() for batch in batches)


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

    source: the global batches. seeded: they are the same on every rank as they stand.
    shares: of the running iteration, in order, one for each batch drawn and not yet handed out.
    """

    def __init__(
        self, source: Any, communicator: Communicator, *, seeded: bool, batch_size: int | None
    ) -> None:
        self._source = source
        self._communicator = communicator
        self._seeded = seeded
        self.batch_size = batch_size
        self.shares: deque[Share] = deque()
        self.dealing = False
        self.forced = False

    def __len__(self) -> int:
        return len(self._source)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Iterations started inside deal, though gradients are off."""
        self.forced = True
        try:
            yield
        finally:
            self.forced = False

    def __iter__(self) -> Iterator[list[int]]:
        self.dealing = self.forced or torch.is_grad_enabled()
        self.shares = deque()
        if not self.dealing:
            return iter(self._source)
        if self._seeded or self._communicator.world_size == 1:
            return self._deal(iter(self._source), self.shares)
        return self._deal(told_by_rank_0(self._source, self._communicator), self.shares)

    def _deal(self, batches: Iterator[list[int]], shares: deque[Share]) -> Iterator[list[int]]:
        rank, parts = self._communicator.rank, self._communicator.world_size
        for batch in batches:
            share = share_of(len(batch), rank, parts)
            shares.append(share)
            # A collate function needs a sample to show its shape; the loader drops it again.
            yield batch[rank::parts] if share.count else batch[:1]
