"""A stream cut into parts, each read by one rank alone, in an order that the number of ranks does
not change: index arithmetic, no framework.

A loader's workers take turns, a global batch each, as torch's do. What one of them reads is cut
into `PARTS` parts, and a batch has as many samples of each part as of any other, as long as all of
them have some left. A rank owns a run of the parts and reads no other; its rows of a batch are a
run too. That a part has ended is known to all ranks only after the batch in which it did, and
batches that are asked for by then are short by its samples; so every rank asks by what was known a
fixed number of batches ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import final

from dream._errors import ConfigurationError
from dream.data.partition import Share

PARTS = 16
"""Parts of what one worker reads, and so the most ranks that can read it."""

PLACES = tuple(int(f"{place:04b}"[::-1], 2) for place in range(PARTS))
"""The parts as they lie in a batch: whoever has a run of it has parts from all over, so that a few
files, which are the first parts, are read by as many ranks."""

Counts = tuple[int, ...]
"""A number of samples for each place."""


def check(options: Mapping[str, object]) -> None:
    """Refuse what parts have no room for. options: a strategy's, each with its value."""
    if options.get("input") == "sharded" and options.get("shares", "equal") != "equal":
        raise ConfigurationError(
            "With sharded input, what a rank reads is its share. Received: input='sharded' with "
            f"shares={options['shares']!r}. Remove one of them."
        )


def owned(rank: int, world_size: int) -> slice:
    """The places whose parts a rank reads."""
    return slice(PARTS * rank // world_size, PARTS * (rank + 1) // world_size)


def share_of(counts: Counts, rank: int, world_size: int) -> Share:
    """A rank's share of a batch that has so many samples of each place."""
    sizes = [sum(counts[owned(each, world_size)]) for each in range(world_size)]
    first = [*accumulate(sizes, initial=0)][rank]
    return Share(sizes[rank], sum(counts), world_size, first=first, most=max(sizes))


@final
@dataclass(slots=True)
class _Worker:
    """What is known of one worker's parts. asked: samples of each so far; left: of which more are
    asked for. ended: places whose part has given fewer than it was asked for."""

    asked: list[int] = field(default_factory=lambda: [0] * PARTS)
    left: list[bool] = field(default_factory=lambda: [True] * PARTS)
    ended: set[int] = field(default_factory=set)


@final
class PartedOrder:
    """How many samples of each part the global batches of a pass have.

    batch_size: the global one. workers: of a loader; 1 where it reads by itself. behind: batches
    after which it is taken into account that a part has ended.
    """

    def __init__(self, batch_size: int, workers: int, behind: int) -> None:
        self._batch_size = batch_size
        self._workers = [_Worker() for _ in range(workers)]
        self._behind = behind
        self._asked: deque[Counts] = deque()
        self._ended: deque[tuple[int, ...]] = deque()
        self._next = self._got = 0

    def ask(self) -> Counts | None:
        """The next batch's samples, by place; None once nothing is left."""
        if self._next >= self._behind:
            worker = self._workers[(self._next - self._behind) % len(self._workers)]
            for place in self._ended.popleft():
                worker.left[place] = False
        if not any(any(worker.left) for worker in self._workers):
            return None
        counts = self._dealt(self._workers[self._next % len(self._workers)])
        self._next += 1
        self._asked.append(counts)
        return counts

    def got(self, counts: Sequence[int]) -> bool:
        """So many samples of each place the next batch has, over all ranks. Return whether its
        worker's parts have all ended with it."""
        asked = self._asked.popleft()
        short = (have < want for have, want in zip(counts, asked, strict=True))
        ended = tuple(place for place, fewer in enumerate(short) if fewer)
        self._ended.append(ended)
        worker = self._workers[self._got % len(self._workers)]
        self._got += 1
        worker.ended.update(ended)
        return len(worker.ended) == PARTS

    def _dealt(self, worker: _Worker) -> Counts:
        """The batch size divided among the parts of which something is left; who has been asked
        for least gives one more, the first parts first."""
        left = sorted(
            (place for place in range(PARTS) if worker.left[place]),
            key=lambda place: (worker.asked[place], PLACES[place]),
        )
        counts = [0] * PARTS
        if left:
            each, more = divmod(self._batch_size, len(left))
            for turn, place in enumerate(left):
                counts[place] = each + (turn < more)
                worker.asked[place] += counts[place]
        return tuple(counts)
