"""What the first server knows of the workers: clocks, leases, figures. No sockets, no threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, final

from dream._errors import Desynchronized
from dream.parameter_server.clocks import Clocks
from dream.parameter_server.deals import Deal, Epoch
from dream.parameter_server.staleness import Staleness

Key = tuple[int, int]
"""A loader's number and its epoch."""


@final
class Coordinator:
    """bound: the `staleness=` option; 0 makes one update of each global batch, in parts."""

    def __init__(self, workers: int, bound: int | None) -> None:
        self._workers = workers
        self._bound = bound
        self._clocks = Clocks(bound)
        self._deals: dict[Key, Deal] = {}
        self._present: set[int] = set()
        self._seen: set[int] = set()
        self._gone: set[int] = set()
        self._waits_for: dict[int, tuple[Key, int]] = {}
        self._passes: dict[int, list[Key]] = {}
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
        """A worker has finished, or is lost; how many samples must be dealt again."""
        if worker not in self._present:
            return 0
        self._present.discard(worker)
        self._gone.add(worker)
        self._clocks.leave(worker)
        self._waits_for.pop(worker, None)
        self._lost += lost
        again = 0
        for deal in self._deals.values():
            for lease in deal.held_by(worker):
                again += deal.samples(lease)
                deal.give_back(lease)
        self._repeated += again
        return again

    def never_came(self, worker: int) -> None:
        """The others need not wait for it."""
        if worker not in self._present:
            self._gone.add(worker)

    def begin(self, worker: int, key: Key, epoch: Epoch) -> None:
        """A worker begins an epoch of a loader; the first one to do so says what it is."""
        begun = self._passes.setdefault(worker, [])
        if begun[-1:] != [key]:
            begun.append(key)
        known = self._deals.setdefault(key, Deal(epoch, self.split))
        if known.epoch != epoch:
            raise Desynchronized(
                f"The workers' data differ. Received: {epoch}, and {known.epoch} of another "
                "worker. Make the same loaders, in the same order, on every rank, and give what "
                "shuffles the same seed."
            )

    def knows(self, key: Key) -> bool:
        """Whether somebody has begun this epoch."""
        return key in self._deals

    def holds(self, worker: int, key: Key, lease: int) -> bool:
        return key in self._deals and self._deals[key].holds(worker, lease)

    def parts(self, key: Key, lease: int) -> tuple[int, int, int]:
        """The lease's batch, part, and of how many."""
        deal = self._deals[key]
        batch, part = deal.part_of(lease)
        return batch, part, deal.parts(batch)

    def settle(self, worker: int, key: Key, leases: Sequence[int], *, gradient: bool) -> None:
        """The worker is done with these: it has brought their gradient, or there is none."""
        for lease in leases:
            if self.holds(worker, key, lease):
                self._deals[key].done(lease)
        if gradient:
            self._by_worker[worker] += 1
        if not self.in_step:
            self._clocks.tick(worker, len(leases))
        elif gradient:
            self._waits_for[worker] = key, self._deals[key].part_of(leases[-1])[0]

    def updated(self, staleness: int) -> None:
        """An update was made."""
        self._histogram[staleness] += 1
        if self.in_step:
            self._clocks.tick_all()
            self._waits_for.clear()

    def release(self, worker: int, key: Key, leases: Sequence[int]) -> None:
        for lease in leases:
            if self.holds(worker, key, lease):
                self._deals[key].give_back(lease)

    def waits(self, worker: int) -> bool:
        """Whether the worker's last gradient is in no update yet."""
        return worker in self._waits_for

    def check_together(self, worker: int) -> None:
        """Raise where the worker waits, in step, for one that has gone on to another pass."""
        key, batch = self._waits_for[worker]
        deal = self._deals[key]
        for other in sorted(self._present - {worker}):
            left = key in self._passes.get(other, [])[:-1]
            if left and deal.peek([other], batch) is not None:
                raise Desynchronized(
                    "Workers that share each batch make each pass together. Received: rank "
                    f"{other} went on to another pass, and rank {worker} waits for its part of "
                    f"batch {batch}. Stop early on all ranks alike, or use staleness=1 or more."
                )

    def next_lease(self, worker: int, key: Key) -> int | None:
        """The lease that the worker may start on now, which it then holds; None for none."""
        deal = self._deals[key]
        if worker in self._waits_for:
            waited_for, batch = self._waits_for[worker]
            key, deal = waited_for, self._deals[waited_for]
            lease = deal.peek(self._parts_for(worker), batch)
        else:
            lease = deal.peek(self._parts_for(worker))
        if lease is not None:
            deal.take(worker, lease)
        return lease

    def has_lease(self, worker: int, key: Key) -> bool:
        """Whether there is one, whether or not it may be started on now."""
        return self._deals[key].peek(self._parts_for(worker)) is not None

    def may_start(self, worker: int, key: Key, batches: int) -> bool:
        """Whether the worker may start on its next batch: once done with so many more it would
        be within the bound; in step, all batches before it are in the parameters."""
        if not self.in_step:
            return self._clocks.may_start(worker, batches)
        deal = self._deals[key]
        coming = min(deal.held_by(worker), default=deal.peek(self._parts_for(worker)))
        return coming is None or deal.part_of(coming)[0] <= deal.whole

    def holding(self, worker: int, key: Key) -> int:
        """How many leases of an epoch the worker holds."""
        return len(self._deals[key].held_by(worker))

    def finished(self, key: Key) -> bool:
        """Whether an epoch is done, by all workers together."""
        return self._deals[key].finished

    def _parts_for(self, worker: int) -> list[int]:
        """A worker's own part of a batch, and those of workers that are gone."""
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
        """For a snapshot: all but who is there."""
        return {
            "deals": [
                (key, astuple(deal.epoch), deal.done_leases) for key, deal in self._deals.items()
            ],
            "histogram": dict(self._histogram),
            "by_worker": dict(self._by_worker),
            "counts": (self._repeated, self._lost, self._joined),
            "lead": self._clocks.lead,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self._deals = {
            key: Deal(Epoch(*epoch), self.split, done) for key, epoch, done in saved["deals"]
        }
        self._histogram = Counter(saved["histogram"])
        self._by_worker = Counter(saved["by_worker"])
        self._repeated, self._lost, self._joined = saved["counts"]
        self._clocks.lead = saved["lead"]
