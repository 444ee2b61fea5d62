"""A stream of which each rank reads its own parts alone: `input="sharded"`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from dream._errors import Desynchronized, Unsupported
from dream._log import say_once
from dream.adapters.pytorch.data.reading.part_reader import BatchRequest, PartsReader, Read, runs
from dream.adapters.pytorch.data.reading.rows import empty
from dream.adapters.pytorch.data.reading.streams import Dealt
from dream.collectives import Communicator
from dream.data.partition import check_batch_size
from dream.data.parts import PARTS, Counts, PartedOrder, owned, share_of
from dream.data.position import chained

_BY_ITSELF = (
    "the collate function pads to the longest, or draws random numbers: under input='sharded' a "
    "rank does so for its own samples, not for the global batch"
)


@final
class Requests(Sampler[BatchRequest]):
    """What the batches of a pass take on this rank. Set for each."""

    def __init__(self) -> None:
        self.now: Callable[[], Iterator[BatchRequest]] = lambda: iter(())

    def __iter__(self) -> Iterator[BatchRequest]:
        return self.now()


@final
class PartedStream:
    """Reads this rank's parts of a loader's stream. alone: in which loaders are not dealt."""

    def __init__(
        self,
        ranks: Communicator,
        loader: DataLoader[Any],
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._ranks, self._loader, self._alone = ranks, loader, alone
        self._batch_size = _checked(loader, ranks.world_size)
        self._workers = max(1, loader.num_workers)
        self._reader, self._requests = PartsReader(loader), Requests()
        self._passes = 0
        self._shown: Any = None
        with alone():
            self._inner = DataLoader(
                self._reader, sampler=self._requests, batch_size=None, collate_fn=_as_it_is,
                num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor,
                persistent_workers=loader.persistent_workers, pin_memory=loader.pin_memory,
                timeout=loader.timeout, generator=torch.Generator(),
                multiprocessing_context=loader.multiprocessing_context,
            )  # fmt: skip

    @property
    def facts(self) -> dict[str, Any]:
        """What must be the same where a pass is gone on with."""
        return {"input": "sharded", "workers": self._workers, "behind": self._behind}

    @property
    def _behind(self) -> int:
        """Batches that a loader asks for before it hands one out, and that one."""
        return 1 + self._loader.num_workers * (self._loader.prefetch_factor or 0)

    def begin(self, generator: torch.Generator | None, micros: int) -> Iterator[Dealt]:
        """A pass. generator: what it is seeded from; None for torch's."""
        seed = int(torch.randint(2**62, (), generator=generator))
        order = PartedOrder(self._batch_size, self._workers, self._behind)
        self._reader.collate, self._reader.init = (
            self._loader.collate_fn,
            self._loader.worker_init_fn,
        )
        self._passes += 1
        number = self._passes
        asked: list[int] = []
        self._requests.now = lambda: self._ask(order, number, seed, micros, asked)
        with self._alone():
            inner = iter(self._inner)
        return self._exchanged(inner, order, asked, number)

    def _ask(
        self, order: PartedOrder, number: int, seed: int, micros: int, asked: list[int]
    ) -> Iterator[BatchRequest]:
        """asked: the micro-batches of each request, for whom reads the answers."""
        ranks, mine = self._ranks, owned(self._ranks.rank, self._ranks.world_size)
        batch = 0
        while (counts := order.ask()) is not None:
            most = share_of(counts, ranks.rank, ranks.world_size).largest
            asked.append(max(1, min(micros, most)))
            own = tuple(c if mine.start <= p < mine.stop else 0 for p, c in enumerate(counts))
            look = number == 1 and batch == 0
            yield BatchRequest(number, batch % self._workers, seed, own, asked[-1], look)
            batch += 1

    def _exchanged(
        self, inner: Iterator[Read], order: PartedOrder, asked: list[int], number: int
    ) -> Iterator[Dealt]:
        """The batches that have a sample on any rank."""
        try:
            for batch, read in enumerate(inner):
                if read.told:
                    self._compare(read)
                own = np.array(read.counts + read.digests, np.int64)
                table = self._ranks.all_reduce(own, "sum")
                counts = tuple(map(int, table[:PARTS]))
                over = order.got(counts)
                total = sum(counts)
                if not total or (self._loader.drop_last and over and total < self._batch_size):
                    continue
                yield self._dealt(counts, table, read.batches, asked[batch])
        finally:
            self._reader.forget(number)

    def _dealt(self, counts: Counts, table: Any, batches: list[Any], micros: int) -> Dealt:
        if self._shown is None:
            self._check_all_have_some(counts)
            self._shown = empty(batches[0])
        shares = runs(share_of(counts, self._ranks.rank, self._ranks.world_size), micros)
        return shares, chained(0, table.tobytes()), batches or [self._shown] * micros

    def _check_all_have_some(self, counts: Counts) -> None:
        size = self._ranks.world_size
        bare = [rank for rank in range(size) if not sum(counts[owned(rank, size)])]
        if bare:
            raise Unsupported(
                "input='sharded' has each rank read other parts of a stream. Received: one whose "
                f"parts on rank {', '.join(map(str, bare))} are empty at the start. Give it at "
                "least as many files as ranks, divided by get_worker_info(), or remove input=."
            )

    def _compare(self, read: Read) -> None:
        """The ranks read the same stream, whose parts are not the same."""
        told = np.array([*read.told, *(-each for each in read.told)], np.int64)
        most = self._ranks.all_reduce(told, "max")
        if any(most[:2] != -most[2:]):
            raise Desynchronized(
                "The ranks read different streams. Received: other samples of the first parts. "
                "Take a part by worker (torch.utils.data.get_worker_info), not by rank, and seed "
                "what shuffles files alike on all ranks: dream tells which part is whose."
            )
        if len({*read.told}) == 1 and read.told[0]:
            raise Unsupported(
                "A stream that is read in parts must be divided by worker. Received: a "
                f"{type(self._loader.dataset).__name__} whose first parts begin with the same "
                "samples, so that each would come many times. Take files or samples [info.id :: "
                "info.num_workers] of info = torch.utils.data.get_worker_info(), or remove input=. "
                "(A stream that draws its samples draws them by info.id.)"
            )
        if read.alone:
            say_once(_BY_ITSELF)


def _checked(loader: DataLoader[Any], ranks: int) -> int:
    """The batch size of a loader whose stream can be read in parts."""
    if loader.batch_size is None or type(loader).__iter__ is not DataLoader.__iter__:
        raise Unsupported(
            "A stream is read in parts by torch's own DataLoader, in batches of a size. Received: "
            f"a {type(loader).__name__} with batch_size={loader.batch_size}. Have the stream yield "
            "samples and give a DataLoader the batch size, or remove input=."
        )
    if ranks > PARTS:
        raise Unsupported(
            f"input='sharded' cuts a stream into {PARTS} parts. Received: {ranks} ranks. Use at "
            f"most {PARTS}, or remove input=."
        )
    check_batch_size(loader.batch_size, ranks)
    return loader.batch_size


def _as_it_is(read: Any) -> Any:
    return read
