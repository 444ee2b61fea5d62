"""Whether all ranks draw the same order from the same data, looked at now and then."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import final

from dream._errors import Desynchronized
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.generators import InStep, Words, words
from dream.adapters.pytorch.tensors import dump, load
from dream.collectives import Communicator
from dream.data.alike import Looks, check_data, unlike


@final
class PassAgreement:
    """What the ranks of a strategy tell each other when a pass to train on begins."""

    def __init__(self, ranks: Communicator, in_step: InStep) -> None:
        self.ranks = ranks
        self.in_step = in_step
        self._looks = Looks()
        self._apart = 0

    def due(self) -> bool:
        """Whether the pass that begins is looked at: the same answer on every rank. Of those that a
        thread of the script's own reads the first, for which the loop waits: while others are read
        it may be in a call of all ranks itself."""
        if current.is_apart():
            self._apart += 1
            return self._apart == 1 and self.ranks.world_size > 1
        return self._looks.due() and self.ranks.world_size > 1


@final
class Order:
    """The order of one loader on all ranks. data: a digest of its data; 0 for not known. size: of
    its batches, where it cuts them itself."""

    def __init__(self, agreement: PassAgreement, data: Callable[[], int], size: int | None) -> None:
        self._agreement = agreement
        self._data = data
        self._size = size
        self._data_told = False
        self._of_rank_0 = False
        self._last = 0

    def begin(self) -> Words | None:
        """A pass begins. The words of the generators now; None where nothing is compared."""
        return words() if self._agreement.due() else None

    def drawn(self, batches: Iterator[list[int]], begun: Words | None) -> Iterator[list[int]]:
        """The batches of a pass on this rank, with a look at the first one; rank 0's where the
        ranks draw others."""
        if self._of_rank_0:
            if begun is not None:
                told = self._agreement.ranks.all_gather_object(list(begun))
                self._agreement.in_step.settle(told)
            return told_by_rank_0(batches, self._agreement.ranks)
        if begun is None:
            return batches
        first = list(islice(batches, 1))
        if self._compare(begun, zlib.crc32(repr(first).encode())):
            return chain(first, batches)
        return told_by_rank_0(chain(first, batches), self._agreement.ranks)

    def ended(self, digest: int) -> None:
        """A pass has come to its end. digest: of all its batches."""
        self._last = digest

    def _compare(self, begun: Words, first: int) -> bool:
        """Whether the ranks draw the same order. Every rank calls it."""
        agreement = self._agreement
        data = 0 if self._data_told else self._data()
        self._data_told = True
        own = [list(begun), first, self._last, data, self._size]
        told = agreement.ranks.all_gather_object(own)
        if len({tuple(row[0][0]) for row in told}) == 1:  # random samples would differ else
            check_data([row[3] for row in told])
        differ = agreement.in_step.settle([row[0] for row in told])
        if len({row[1] for row in told}) == 1:
            _check_last([row[2] for row in told])
            return True
        self._of_rank_0 = True
        if not differ or len({row[4] for row in told}) > 1:
            agreement.in_step.say(_why_rank_0s([row[4] for row in told]))
        return False


def _why_rank_0s(sizes: list[int | None]) -> str:
    if len(set(sizes)) > 1:
        each = ", ".join(f"rank {rank} {size}" for rank, size in enumerate(sizes))
        return (
            f"the ranks' loaders have different batch sizes ({each}): rank 0's batches are used, "
            "told one by one. Give the global batch size on every rank; each takes its part of it"
        )
    return (
        "the ranks' samplers draw different orders: rank 0's is used, told batch by batch. "
        "Seed what shuffles the data alike on all ranks to spare that. An order by what the loop "
        "keeps of its rows, as losses, is not that of one device: keep those of all ranks, by "
        "strategy.communicator.all_gather"
    )


def _check_last(said: list[int]) -> None:
    if len(set(said)) > 1:
        raise Desynchronized(
            "The ranks drew different orders in the previous epoch, so samples were skipped or "
            f"repeated. Received: {unlike(said)}. Seed whatever shuffles the data identically on "
            "all ranks."
        )


def told_by_rank_0(batches: Iterable[list[int]], ranks: Communicator) -> Iterator[list[int]]:
    """Rank 0's batches on every rank, one at a time: nothing is read ahead. The others draw too,
    so that what they draw from goes on as rank 0's does."""
    drawn = iter(batches)
    while True:
        told = load(ranks.broadcast_object(dump(next(drawn, None))))
        if told is None:
            return
        yield told
