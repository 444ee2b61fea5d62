"""The first server's knowledge of the workers: clocks, leases, figures. No sockets, no threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, final

from dream._errors import Desynchronized
from dream.parameter_server.leases import Epoch, EpochLeases
from dream.parameter_server.protocol import EpochKey
from dream.parameter_server.staleness import Staleness


@final
class Clocks:
    """How many batches each worker that is there has done. bound: how far the fastest may lead the
    slowest; None for any distance."""

    def __init__(self, bound: int | None) -> None:
        self._bound = bound
        self._at: dict[int, int] = {}
        self._last = 0
        self.lead = 0
        """The largest lead there has been."""

    def join(self, worker: int) -> None:
        """Start a worker that comes, or comes back, level with the slowest."""
        self._at[worker] = min(self._at.values(), default=self._last)

    def leave(self, worker: int) -> None:
        self._last = max(self._last, self._at.pop(worker, 0))

    def tick(self, worker: int, batches: int = 1) -> None:
        if worker in self._at:
            self._at[worker] += batches
            self.lead = max(self.lead, max(self._at.values()) - min(self._at.values()))

    def tick_all(self) -> None:
        for worker in self._at:
            self._at[worker] += 1

    def may_start(self, worker: int, batches: int = 1) -> bool:
        """Whether the worker, once done with that many more, is still within the bound."""
        if self._bound is None:
            return True
        return self._at[worker] + batches - min(self._at.values()) <= self._bound


@final
class Coordinator:
    """Deals batches to workers, and bounds how far they run ahead of each other.

    bound: the `staleness=` option; 0 makes one update of each global batch, in parts.
    """

    def __init__(self, workers: int, bound: int | None) -> None:
        self._workers = workers
        self._bound = bound
        self._clocks = Clocks(bound)
        self._epochs: dict[EpochKey, EpochLeases] = {}
        self._present: set[int] = set()
        self._seen: set[int] = set()
        self._gone: set[int] = set()
        self._waits_for: dict[int, tuple[EpochKey, int]] = {}
        self._passes: dict[int, list[EpochKey]] = {}
        self._histogram: Counter[int] = Counter()
        self._by_worker: Counter[int] = Counter()
        self._repeated = self._lost = self._joined = 0

    @property
    def in_step(self) -> bool:
        """Whether workers share each batch."""
        return self._bound == 0

    @property
    def split(self) -> int:
        return self._workers if self.in_step else 1

    @property
    def present(self) -> frozenset[int]:
        return frozenset(self._present)

    def join(self, worker: int) -> None:
        self._joined += worker in self._seen
        self._seen.add(worker)
        self._gone.discard(worker)
        self._present.add(worker)
        self._passes.pop(worker, None)
        self._clocks.join(worker)

    def leave(self, worker: int, *, lost: bool) -> int:
        """Count a worker out that has finished, or is lost. Returns how many samples must be dealt
        again."""
        if worker not in self._present:
            return 0
        self._present.discard(worker)
        self._gone.add(worker)
        self._clocks.leave(worker)
        self._waits_for.pop(worker, None)
        self._lost += lost
        again = 0
        for leases in self._epochs.values():
            for lease in leases.held_by(worker):
                again += leases.samples(lease)
                leases.give_back(lease)
        self._repeated += again
        return again

    def never_came(self, worker: int) -> None:
        """Have the others wait for it no longer."""
        if worker not in self._present:
            self._gone.add(worker)

    def begin(self, worker: int, key: EpochKey, epoch: Epoch) -> None:
        """Begin an epoch of a loader for a worker; the first one to do so says what it is."""
        begun = self._passes.setdefault(worker, [])
        if begun[-1:] != [key]:
            begun.append(key)
        known = self._epochs.setdefault(key, EpochLeases(epoch, self.split))
        if known.epoch != epoch:
            raise Desynchronized(
                f"The workers' data differ. Received: {epoch}, and {known.epoch} of another "
                "worker. Make the same loaders, in the same order, on every rank, and give what "
                "shuffles the same seed."
            )

    def knows(self, key: EpochKey) -> bool:
        """Whether somebody has begun this epoch."""
        return key in self._epochs

    def holds(self, worker: int, key: EpochKey, lease: int) -> bool:
        return key in self._epochs and self._epochs[key].holds(worker, lease)

    def parts(self, key: EpochKey, lease: int) -> int:
        """Of how many parts the lease's batch is."""
        leases = self._epochs[key]
        return leases.parts(leases.part_of(lease)[0])

    def settle(self, worker: int, key: EpochKey, leases: Sequence[int], *, gradient: bool) -> None:
        """Count these as done: the worker has brought their gradient, or there is none."""
        for lease in leases:
            if self.holds(worker, key, lease):
                self._epochs[key].done(lease)
        if gradient:
            self._by_worker[worker] += 1
        if not self.in_step:
            self._clocks.tick(worker, len(leases))
        elif gradient:
            self._waits_for[worker] = key, self._epochs[key].part_of(leases[-1])[0]

    def updated(self, staleness: int) -> None:
        """Count an update."""
        self._histogram[staleness] += 1
        if self.in_step:
            self._clocks.tick_all()
            self._waits_for.clear()

    def release(self, worker: int, key: EpochKey, leases: Sequence[int]) -> None:
        for lease in leases:
            if self.holds(worker, key, lease):
                self._epochs[key].give_back(lease)

    def grant(
        self, worker: int, key: EpochKey, batches: int | None, *, wants: bool, wait: bool
    ) -> tuple[bool, int | None]:
        """Decide whether the worker may go on, and with which lease, if any, which it then holds.

        batches: that it does next, and may not be beyond the bound by; None for a lease that is
            only taken ahead. wants: a lease. wait: until there is one, or the epoch is done by all.
        """
        if worker in self._waits_for:  # its gradient is in no update yet: only parts of the same
            lease = self.next_lease(worker, key)
            if lease is None:
                self._check_together(worker)
            return lease is not None, lease
        there = self._epochs[key].peek(self._parts_for(worker)) is not None
        if there or (self.holding(worker, key) and not wait):
            if batches is not None and not self.may_start(worker, key, batches):
                return False, None
            return True, self.next_lease(worker, key) if wants and there else None
        return not wait or self.finished(key), None

    def next_lease(self, worker: int, key: EpochKey) -> int | None:
        """Hand out the next lease; None for none. A worker that waits for an update gets what is
        missing from that alone."""
        batch = None
        if worker in self._waits_for:
            key, batch = self._waits_for[worker]
        leases = self._epochs[key]
        lease = leases.peek(self._parts_for(worker), batch)
        if lease is not None:
            leases.take(worker, lease)
        return lease

    def _check_together(self, worker: int) -> None:
        """Raise where the worker waits, in step, for one that has gone on to another pass."""
        key, batch = self._waits_for[worker]
        leases = self._epochs[key]
        for other in sorted(self._present - {worker}):
            left = key in self._passes.get(other, [])[:-1]
            if left and leases.peek([other], batch) is not None:
                raise Desynchronized(
                    "Workers that share each batch (staleness=0) must run each epoch together. "
                    f"Received: rank {other} started another epoch while rank {worker} is waiting "
                    f"for its part of batch {batch}. Stop early on all ranks alike, or use "
                    "staleness=1 or more."
                )

    def may_start(self, worker: int, key: EpochKey, batches: int) -> bool:
        """Whether the worker may start on its next batch: once done with so many more it would
        be within the bound; in step, all batches before it are in the parameters."""
        if not self.in_step:
            return self._clocks.may_start(worker, batches)
        leases = self._epochs[key]
        coming = min(leases.held_by(worker), default=leases.peek(self._parts_for(worker)))
        return coming is None or leases.part_of(coming)[0] <= leases.whole

    def holding(self, worker: int, key: EpochKey) -> int:
        """How many leases of an epoch the worker holds."""
        return len(self._epochs[key].held_by(worker))

    def finished(self, key: EpochKey) -> bool:
        """Whether an epoch is done, by all workers together."""
        return self._epochs[key].finished

    def _parts_for(self, worker: int) -> list[int]:
        """Return a worker's own part of a batch, and those of workers that are gone."""
        if not self.in_step:
            return [0]
        return [worker, *sorted(self._gone)]

    def staleness(self) -> Staleness:
        return Staleness(
            histogram=dict(sorted(self._histogram.items())),
            by_worker=dict(sorted(self._by_worker.items())),
            lead=self._clocks.lead,
            repeated=self._repeated,
            lost=self._lost,
            joined=self._joined,
        )

    def save(self) -> dict[str, Any]:
        """Return all but who is there, for a snapshot."""
        return {
            "epochs": [(k, astuple(own.epoch), own.done_leases) for k, own in self._epochs.items()],
            "histogram": dict(self._histogram),
            "by_worker": dict(self._by_worker),
            "counts": (self._repeated, self._lost, self._joined),
            "lead": self._clocks.lead,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self._epochs = {
            key: EpochLeases(Epoch(*epoch), self.split, done)
            for key, epoch, done in saved["epochs"]
        }
        self._histogram = Counter(saved["histogram"])
        self._by_worker = Counter(saved["by_worker"])
        self._repeated, self._lost, self._joined = saved["counts"]
        self._clocks.lead = saved["lead"]
