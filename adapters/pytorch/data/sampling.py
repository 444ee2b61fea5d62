"""The order of a loader's global batches, and this rank's part of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, final

import torch
from torch.utils.data import Sampler

from dream.adapters.pytorch.tensors import dump, load
from dream.collectives import Communicator
from dream.data.partition import epoch_order, global_batches, micro_shares, share_of
from dream.data.position import Pass, Position, Track, chained, check_long_enough, check_read_again

Reading = Literal["by gradients", "share", "whole"]
"""by gradients: this rank's part where they are on, every sample where they are off. share: this
rank's part. whole: every sample, in the order that counts epochs."""


@final
class Reads:
    """now: what a pass that starts now reads."""

    def __init__(self) -> None:
        self.now: Reading = "by gradients"

    @contextmanager
    def told(self, reading: Reading) -> Iterator[None]:
        """Passes that start inside read so, whether gradients are on or off."""
        self.now = reading
        try:
            yield
        finally:
            self.now = "by gradients"


_AHEAD = 1024  # batches of a user's sampler that rank 0 tells at a time


@final
class SeededBatches(Sampler[list[int]]):
    """Global batches in the order that (seed, epoch) gives; the epoch is `track`'s."""

    def __init__(
        self, dataset: Sized, batch_size: int, *, shuffle: bool, drop_last: bool, seed: int
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._seed = seed
        self.track = Track(lambda: {"length": len(dataset), "shuffle": shuffle, "seed": seed})

    def __len__(self) -> int:
        return self.left(Position())

    def left(self, start: Position) -> int:
        """Batches of a pass that starts there."""
        whole, rest = divmod(len(self._dataset) - start.samples, self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches(Position(self.track.epoch))

    def batches(self, start: Position) -> Iterator[list[int]]:
        order = epoch_order(
            len(self._dataset), seed=self._seed, epoch=start.epoch, shuffle=self._shuffle
        )[start.samples :]
        batches = global_batches(order, self._batch_size, drop_last=self._drop_last)
        return (batch.tolist() for batch in batches)


def told_by_rank_0(batches: Iterable[list[int]], communicator: Communicator) -> Iterator[list[int]]:
    """Rank 0's batches on every rank: a user's sampler draws for itself, and once is enough."""
    drawn = iter(batches) if communicator.rank == 0 else iter(())
    while True:
        chunk = load(communicator.broadcast_object(dump(list(islice(drawn, _AHEAD)))))
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
        self._seeded = source if isinstance(source, SeededBatches) else None
        own = Track(lambda: {"batch_size": batch_size})
        self.track = own if self._seeded is None else self._seeded.track
        self._communicator = communicator
        self._together = told_by is not None
        self._told_by = told_by or communicator
        self.reads = Reads()
        self._begun: Pass | None = None

    def __len__(self) -> int:
        """Global batches, which are updates: what a schedule is reckoned in."""
        return len(self._source)

    def begun(self) -> Pass | None:
        """The pass that the last `__iter__` began; None where it reads every sample unmarked."""
        return self._begun

    def __iter__(self) -> Iterator[list[int]]:
        reading = self.reads.now
        if reading == "by gradients" and not torch.is_grad_enabled():
            self._begun = None
            return self._every_batch() if self._together else iter(self._source)
        trains = reading == "by gradients"
        start = self.track.begin() if trains else Position(self.track.epoch)
        length = len(self) - start.batches if self._seeded is None else self._seeded.left(start)
        counts = None if reading == "share" else self.track
        self._begun = Pass(counts, start, trains=trains, length=length)
        return self._deal(self._begun, self._micros() if trains else 1, whole=reading == "whole")

    def _every_batch(self) -> Iterator[list[int]]:
        if self._told_by.world_size == 1 or self._seeded is not None:
            return iter(self._source)
        return told_by_rank_0(self._source, self._told_by)

    def _deal(self, begun: Pass, micros: int, *, whole: bool) -> Iterator[list[int]]:
        rank, parts = self._communicator.rank, self._communicator.world_size
        batches = iter(self._source) if whole and not self._together else self._every_batch()
        if whole:
            rank, parts = 0, 1
        for batch, digest in self._from(begun.position, batches):
            share, mine = share_of(len(batch), rank, parts), batch[rank::parts]
            for part in micro_shares(share, micros) if micros > 1 else (share,):
                begun.drawn(part, digest)
                taken, mine = mine[: part.count], mine[part.count :]
                # A collate function needs a sample to show its shape; the loader drops it again.
                yield taken if part.count else batch[:1]

    def _from(
        self, start: Position, batches: Iterator[list[int]]
    ) -> Iterator[tuple[list[int], int]]:
        """The batches that are to be handed out yet, each with the digest of all up to it."""
        if self._seeded is not None:
            yield from ((batch, 0) for batch in self._seeded.batches(start))
            return
        digest, read = 0, 0
        for batch in batches:
            digest, read = chained(digest, repr(batch).encode()), read + 1
            if read > start.batches:
                yield batch, digest
            elif read == start.batches:
                check_read_again(digest, start)
        check_long_enough(read, start)
