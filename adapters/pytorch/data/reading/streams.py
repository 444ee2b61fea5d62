"""A stream of samples, dealt: every rank reads all of it, and keeps its part of each global batch.

A stream has no indices to deal out. Each rank has the workers that one device has, with the same
samples in each, and before a batch is handed out the ranks compare what they have read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, Self, final

import numpy as np
import torch
from torch.utils.data import DataLoader

from dream._errors import Desynchronized, Unsupported
from dream.adapters.pytorch.data.digests import digest_of
from dream.adapters.pytorch.data.drawn_order import DrawnOrder
from dream.adapters.pytorch.data.held import check_read
from dream.adapters.pytorch.data.reading.fetch import varies
from dream.adapters.pytorch.data.reading.rows import cut_batch, empty, rows
from dream.adapters.pytorch.data.sampling import Reads
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.generators import digests
from dream.collectives import Communicator
from dream.data.partition import Division, Share, micro_shares
from dream.data.position import Pass, Position, Track, chained, check_long_enough, check_read_again

Collated = tuple[int, int, list[Any]]
"""Samples of a global batch, a digest of it, and this rank's part in micro-batches."""
Dealt = tuple[list[Share], int, list[Any]]
"""This rank's shares of a global batch, a digest of that, and the shares' samples."""


class StreamParts(Protocol):
    """Reads a rank's parts of a stream alone.

    facts: what must be the same where a pass is gone on with.
    """

    @property
    def facts(self) -> dict[str, Any]: ...

    def begin(self, generator: torch.Generator | None, micros: int) -> Iterator[Dealt]:
        """Ask for a pass, in at most `micros` micro-batches. generator: what it is seeded from;
        None for torch's."""


@final
class DealtCollate:
    """A collate function that collates this rank's part of a batch; or the batch, of which it keeps
    its rows, where what a row becomes depends on the others: by random draws, or by padding to the
    longest. It finds out with the first batch, of which every rank has all samples.

    batched: whether it is given a list of samples, else a batch that the stream made.
    """

    def __init__(
        self, collate: Callable[[Any], Any], rank: int, division: Division, *, batched: bool
    ) -> None:
        self._collate = collate
        self._rank = rank
        self._division = division
        self._batched = batched
        self._micros = torch.zeros(1, dtype=torch.int64)
        self._whole: bool | None = None

    def share_memory(self) -> None:
        """Have workers see what is set later."""
        self._micros.share_memory_()

    def set_micros(self, micros: int) -> None:
        """In how many micro-batches a part comes, at most; 0 for the whole batch on every
        rank."""
        self._micros[0] = micros

    def __call__(self, given: Any) -> Collated:
        total = len(given) if self._batched else samples_in(given)
        micros = int(self._micros)
        if micros == 0:
            return total, 0, [self._collate(given)]
        divided = self._division.parts * micros > 1 or not self._batched
        whole = self._collated(given) if divided else None
        parts = []
        for part in micro_shares(self._division.share(total, self._rank), micros):
            # A collate function needs a sample to show its shape; the loader drops it again.
            parts.append(self._part(given, whole, part.cut if part.count else slice(0, 1)))
        return total, digest_of(given), parts

    def _collated(self, given: Any) -> Any:
        """The whole batch; None where a rank's samples are enough."""
        if not self._batched:
            return self._collate(given)
        if self._whole is False:
            return None
        before = digests()
        whole = self._collate(list(given))
        if self._whole is None:
            drew = digests() != before
            self._whole = drew or varies(given, self._collate)
            if self._whole and cut_batch(whole, slice(None), len(given)) is None:
                self._whole = False
                _check_drawn(drew)
        return whole if self._whole else None

    def _part(self, given: Any, whole: Any, cut: slice) -> Any:
        if not self._batched:
            return sliced(whole, cut)
        part = None if whole is None else cut_batch(whole, cut, len(given))
        return self._collate(given[cut]) if part is None else part


def _check_drawn(drew: bool) -> None:
    if drew:
        raise Unsupported(
            "A collate function that draws random numbers draws them for a global batch, of which "
            "a rank keeps its rows. Received: a batch of a stream whose tensors have not a row for "
            "each sample. Draw in the loop or in the stream, or give each sample a row."
        )


def samples_in(batch: Any) -> int:
    """Count a batch that the stream made: the length of what it holds."""
    lengths = sizes_of(batch)
    if len(lengths) != 1:
        raise Unsupported(
            "A stream of batches is dealt by their first dim. Received: a batch of "
            f"{type(batch).__name__} whose arrays have lengths {sorted(lengths)}. Give the loader "
            "a batch_size, or yield tensors alike in their first dim."
        )
    return int(lengths.pop())


def sizes_of(batch: Any) -> set[int]:
    """Return the lengths of what a batch holds."""
    return {len(x) for x in _arrays(batch)}


def sliced(batch: Any, cut: slice) -> Any:
    if isinstance(batch, torch.Tensor):
        return rows(batch, cut)
    if isinstance(batch, dict):
        return type(batch)({key: sliced(value, cut) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(sliced(value, cut) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(sliced(value, cut) for value in batch)
    return batch


def _arrays(batch: Any) -> Iterator[Any]:
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _arrays(value)
    elif getattr(batch, "ndim", 0):
        yield batch


_ENDED = -1


@final
class DealtStream:
    """Deals the batches of a loader over an IterableDataset. told_by, micros: see
    `DealtBatches`. parts: what reads passes to train on, if not all ranks read all."""

    def __init__(
        self,
        communicator: Communicator,
        division: Division,
        loader: DataLoader[Any],
        seed: int | None,
        reads: Reads,
        told_by: Communicator | None = None,
        micros: Callable[[], int] = lambda: 1,
        parts: StreamParts | None = None,
    ) -> None:
        facts = {"batch_size": loader.batch_size} | ({} if seed is None else {"seed": seed})
        facts |= {} if parts is None else parts.facts
        self._parts = parts
        self._drawn = DrawnOrder(loader)
        self.track = Track(lambda: facts, self._drawn if seed is None else None)
        self._batched = loader.batch_size is not None
        self._communicator, self._division = communicator, division
        self._told_by = told_by or communicator
        self._seed = seed
        self._micros = micros
        self.reads = reads
        self._lasting: DealtCollate | None = None

    def iterate(
        self,
        loader: DataLoader[Any],
        begin: Callable[[DataLoader[Any]], Iterator[Any]],
        shares: Shares,
    ) -> Iterator[Any]:
        """A pass. begin: the loader's own iterator."""
        reading = self.reads.now
        trains = self.reads.trains
        start = self.track.begin() if trains else Position(self.track.epoch)
        micros = (self._micros() if trains else 1) if trains or reading == "share" else 0
        generator = None if self._seed is None else _seeded(self._seed, start.epoch)
        with self._drawn.begin(again=start.batches > 0) if trains else nullcontext():
            if trains and self._parts is not None:
                inner = self._parts.begin(loader.generator or generator, micros)
            else:
                inner = self._begun(loader, begin, generator, micros)
        counts = self.track if trains or reading == "whole" else None
        begun = Pass(counts, start, trains=trains)
        if not micros:
            return _whole(inner, begun)
        return _StreamIterator(self, inner, begun, shares)

    def _begun(
        self,
        loader: DataLoader[Any],
        begin: Callable[[DataLoader[Any]], Iterator[Any]],
        generator: torch.Generator | None,
        micros: int,
    ) -> Iterator[Any]:
        collate = self._collate(loader)
        collate.set_micros(micros)
        with _set(loader, collate, generator), current.reading():
            inner = begin(loader)
        return self._compared(inner, micros) if micros else inner

    def _compared(self, inner: Iterator[Collated], micros: int) -> Iterator[Dealt]:
        """What all ranks have read alike."""
        for total, digest, parts in inner:
            self.compare(digest)
            share = self._division.share(total, self._communicator.rank)
            yield micro_shares(share, micros), digest, parts
        self.compare(_ENDED)

    @contextmanager
    def drawing(self, begun: Pass) -> Iterator[None]:
        """Inside, a pass leaves out what was handed out before, and draws what it drew."""
        now = self._drawn.first(again=begun.position.batches > 0) if begun.trains else None
        yield
        self._drawn.go_on(now)

    def compare(self, said: int) -> None:
        """Raise `Desynchronized` where the ranks have not read the same. Every rank calls it."""
        if self._told_by.world_size == 1:
            return
        most, least = self._told_by.all_reduce(np.array([said, -said], np.int64), "max")
        if most != -least:
            ended = -least == _ENDED
            raise Desynchronized(
                "The ranks read different streams. Received: "
                + ("a stream that has ended on some ranks only" if ended else "other samples")
                + ". Every rank must read the whole stream in the same order, and dream deals it: "
                "take a part by worker, not by rank, and seed what shuffles it alike on all ranks."
            )

    def compare_whole(self, batch: Any) -> None:
        """The same of a batch that every rank has read; of none, at the end."""
        self.compare(_ENDED if batch is None else digest_of(batch))

    def _collate(self, loader: DataLoader[Any]) -> DealtCollate:
        """Workers that stay from pass to pass keep the one they were started with."""
        if self._lasting is not None:
            return self._lasting
        made = DealtCollate(
            loader.collate_fn, self._communicator.rank, self._division, batched=self._batched
        )
        if loader.num_workers:
            made.share_memory()
        if loader.persistent_workers:
            self._lasting = made
        return made


@final
class _StreamIterator:
    """Hands out this rank's shares, one after the other, and in micro-batches each."""

    def __init__(
        self,
        stream: DealtStream,
        inner: Iterator[Any],
        begun: Pass,
        shares: Shares,
    ) -> None:
        self._stream = stream
        self._inner = inner
        self._pass = begun
        self._shares = shares
        self._waiting: deque[Any] = deque()
        self._fresh = True
        self._digest = begun.position.digest

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        check_read()
        if self._fresh:
            self._fresh = False
            with self._stream.drawing(self._pass):
                self._leave_out(self._pass.position)
        self._pass.ask()
        if not self._waiting:
            self._read()
        batch, share = self._waiting.popleft(), self._pass.handed()
        if share.count == 0:
            batch = empty(batch)
        self._shares.yielded(batch, share, self)
        return batch

    def _read(self) -> None:
        """The next global batch."""
        try:
            with current.reading():
                shares, digest, parts = next(self._inner)
        except StopIteration:
            self._shares.ended(self)
            self._pass.ended()
            raise
        finally:
            current.pardon()
        self._digest = _joined(self._digest, digest)
        for share, part in zip(shares, parts, strict=True):
            self._pass.drawn(share, self._digest)
            self._waiting.append(part)

    def _leave_out(self, start: Position) -> None:
        """Read past what was handed out before."""
        if not start.batches:
            return
        found = read = 0
        for _, digest, _ in self._inner:
            found, read = _joined(found, digest), read + 1
            if read == start.batches:
                break
        self._stream.compare(found)
        check_long_enough(read, start)
        check_read_again(found, start)

    def __del__(self) -> None:
        self._shares.ended(self)
        self._pass.left()


def _joined(digest: int, of_a_batch: int) -> int:
    return chained(digest, of_a_batch.to_bytes(8, "little"))


def _whole(inner: Iterator[Any], begun: Pass) -> Iterator[Any]:
    """Every sample of each batch."""
    begun.ask()
    for _, _, (batch,) in inner:
        current.pardon()
        yield batch
        begun.ask()


@contextmanager
def _set(
    loader: DataLoader[Any], collate: DealtCollate, generator: torch.Generator | None
) -> Iterator[None]:
    """Have an iteration that begins inside read by these. generator: what workers are seeded from,
    the same on all ranks, where the user brought none; None for
    torch's."""
    own = loader.collate_fn, loader.generator
    loader.collate_fn = collate
    loader.generator = own[1] or generator
    try:
        yield
    finally:
        loader.collate_fn, loader.generator = own


def _seeded(seed: int, epoch: int) -> torch.Generator:
    drawn = int(np.random.default_rng([seed, epoch]).integers(2**62))
    return torch.Generator().manual_seed(drawn)
