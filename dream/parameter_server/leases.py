"""An epoch's batches, dealt to workers as leases: what a dead worker held is dealt again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import final

from dream.parameter_server.protocol import EpochKey


@dataclass(frozen=True, slots=True)
class Epoch:
    """The extent of an epoch, the same on every worker. mark: a whole number below 2**23 made of
    its first batch, or 0 where nobody compares."""

    samples: int
    batch_size: int
    drop_last: bool
    mark: int = 0

    @property
    def batches(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def size(self, batch: int) -> int:
        """Samples in a batch."""
        return min(self.batch_size, self.samples - batch * self.batch_size)


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch, or a part of one, that this worker is to do. number: as the coordinator counts;
    index: the batch; part of parts: every parts-th sample of it, beginning at `part`."""

    key: EpochKey
    number: int
    index: int
    part: int
    parts: int

    def samples(self, epoch: Epoch) -> int:
        return len(range(self.part, epoch.size(self.index), self.parts))


@final
class EpochLeases:
    """Who holds which lease of one epoch.

    split: 1 deals whole batches; more deals every batch in that many parts, and a batch of fewer
    samples in as many parts as it has samples. A lease's number is batch * split + part.
    """

    def __init__(self, epoch: Epoch, split: int, done: Iterable[int] = ()) -> None:
        self.epoch = epoch
        self._split = split
        self._cursors = [0] * split
        self._held: dict[int, int] = {}
        self._done = set(done)
        leases = sum(self.parts(batch) for batch in range(epoch.batches))
        self._remaining = leases - len(self._done)
        self._whole = 0

    def parts(self, batch: int) -> int:
        return min(self._split, self.epoch.size(batch))

    def part_of(self, lease: int) -> tuple[int, int]:
        """Return a lease's batch and part."""
        return divmod(lease, self._split)

    def samples(self, lease: int) -> int:
        batch, part = self.part_of(lease)
        return len(range(part, self.epoch.size(batch), self.parts(batch)))

    @property
    def finished(self) -> bool:
        """Whether every lease is done."""
        return not self._remaining

    @property
    def whole(self) -> int:
        """How many batches are done, counted from the first to where one is not."""
        while self._whole < self.epoch.batches and all(
            self._whole * self._split + part in self._done
            for part in range(self.parts(self._whole))
        ):
            self._whole += 1
        return self._whole

    @property
    def done_leases(self) -> list[int]:
        return sorted(self._done)

    def peek(self, parts: Collection[int], batch: int | None = None) -> int | None:
        """Return the first open lease of these parts, of this batch alone if one is named."""
        found = [lease for part in parts if (lease := self._open(part, batch)) is not None]
        return min(found, default=None)

    def take(self, worker: int, lease: int) -> None:
        self._held[lease] = worker

    def holds(self, worker: int, lease: int) -> bool:
        return self._held.get(lease) == worker

    def done(self, lease: int) -> None:
        if self._held.pop(lease, None) is not None:
            self._done.add(lease)
            self._remaining -= 1

    def give_back(self, lease: int) -> None:
        """Open the lease again."""
        if self._held.pop(lease, None) is not None:
            batch, part = self.part_of(lease)
            self._cursors[part] = min(self._cursors[part], batch)

    def held_by(self, worker: int) -> list[int]:
        return [lease for lease, holder in self._held.items() if holder == worker]

    def _open(self, part: int, batch: int | None) -> int | None:
        if batch is not None:
            lease = batch * self._split + part
            return lease if part < self.parts(batch) and self._is_open(lease) else None
        while self._cursors[part] < self.epoch.batches:
            at = self._cursors[part]
            lease = at * self._split + part
            if part < self.parts(at) and self._is_open(lease):
                return lease
            self._cursors[part] += 1
        return None

    def _is_open(self, lease: int) -> bool:
        return lease not in self._held and lease not in self._done
