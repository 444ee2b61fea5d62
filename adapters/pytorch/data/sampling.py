"""The order of a loader's global batches, and this rank's part of each."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch.utils.data import DataLoader, Sampler

from dream.adapters.pytorch.data.agreement import Order
from dream.adapters.pytorch.data.drawn_order import DrawnOrder, States
from dream.adapters.pytorch.data.reading.fetch import Fetch
from dream.adapters.pytorch.randomness.generators import Words
from dream.collectives import Communicator
from dream.data.partition import Divided, Division, epoch_order, global_batches, micro_shares
from dream.data.position import Pass, Position, Track, chained, check_long_enough, check_read_again

Reading = Literal["by mode", "share", "whole"]
"""by mode: this rank's part in training, every sample in evaluation. share: this rank's part.
whole: every sample, in the order that counts epochs."""


_UNDIVIDED = Division(1)


@final
class Reads:
    """What passes over loaders read: a share, or every sample.

    now: what a pass that starts now reads. evaluates: whether the models of the block do.
    """

    def __init__(self, evaluates: Callable[[], bool] = lambda: False) -> None:
        self.now: Reading = "by mode"
        self._evaluates = evaluates

    @property
    def trains(self) -> bool:
        """Whether a pass that starts now is one to train on."""
        return self.now == "by mode" and torch.is_grad_enabled() and not self._evaluates()

    @contextmanager
    def told(self, reading: Reading) -> Iterator[None]:
        """Passes that start inside read so, whether gradients are on or off."""
        self.now = reading
        try:
            yield
        finally:
            self.now = "by mode"


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
        self._facts = lambda: {"length": len(dataset), "shuffle": shuffle, "seed": seed}
        self.track = Track(self._facts)

    def drawn_by(self, drawn: DrawnOrder) -> Track:
        """Return the track, for a loader whose passes draw all the same, as torch's do."""
        self.track = Track(self._facts, drawn)
        return self.track

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


@final
@dataclass(slots=True)
class _Beginning:
    """What an iteration is to read, which its iterator may be asked for more than once before it is
    used. begun: None where it reads every sample unmarked. said: of the generators, told when the
    first batch is drawn."""

    begun: Pass | None = None
    micros: int = 1
    whole: bool = False
    said: Words | None = None
    fetch: Fetch | None = None
    used: bool = False


@final
class DealtBatches(Sampler[list[int]]):
    """A loader's batch sampler: this rank's part of each global batch in training, every sample in
    evaluation.

    source: the global batches, drawn on every rank alike, each when it is asked for.
    micros: in how many micro-batches a share to train on comes, at most; asked at each pass.
    fetch: how samples are read; None for each rank its own.
    divided: how the batch that is drawn next is.
    own_parts: the script adds figures up over the ranks itself, so every pass is of shares.
    """

    def __init__(
        self,
        source: Any,
        loader: DataLoader[Any],
        communicator: Communicator,
        divided: Divided,
        reads: Reads,
        order: Order | None,
        micros: Callable[[], int] = lambda: 1,
        *,
        own_parts: bool = False,
        fetch: Fetch | None = None,
    ) -> None:
        self._own_parts = own_parts
        self.fetch = fetch
        self._fetching = False
        self.batch_size = source.batch_size if own_parts else loader.batch_size
        self.reads = reads
        self.source = source
        self._micros = micros
        self._seeded = source if isinstance(source, SeededBatches) else None
        self._drawn = DrawnOrder(loader)
        self.track = (
            Track(lambda: _facts(loader), self._drawn)
            if self._seeded is None
            else self._seeded.drawn_by(self._drawn)
        )
        self._communicator, self._divided = communicator, divided
        self._order = order
        self._asked: deque[_Beginning] = deque()
        self._last: _Beginning | None = None
        self._made = True

    def __getattr__(self, name: str) -> Any:
        """What only the script's own batch sampler has, as `set_epoch`, is reached through this."""
        if name.startswith("__") or "_made" not in vars(self):
            raise AttributeError(name)
        return getattr(self.source, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What the script sets (an epoch, a batch size) its own batch sampler has, too."""
        mine = name in vars(self)
        made = "_made" in vars(self) and not name.startswith("_")
        if made and name not in ("source", "track", "reads") and hasattr(self.source, name):
            setattr(self.source, name, value)
            if not mine:
                return
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Global batches, which are updates: what a schedule is reckoned in."""
        return len(self.source)

    @contextmanager
    def beginning(self) -> Iterator[Pass | None]:
        """Have the iteration that is asked for inside be a pass: what follows marks its batches.
        None where it reads every sample unmarked."""
        reading, trains = self.reads.now, self.reads.trains
        if self._own_parts and not trains:
            reading = "share"
        if reading == "by mode" and not trains:
            self._asked.append(_Beginning())
            yield None
            return
        start = self.track.begin() if trains else Position(self.track.epoch)
        counts = None if reading == "share" else self.track
        begun = Pass(counts, start, trains=trains, length=self._left(start))
        with self._drawn.begin(again=start.batches > 0) if trains else nullcontext():
            said = self._order.begin() if trains and self._order is not None else None
            micros = self._micros() if trains else 1
            self._asked.append(_Beginning(begun, micros, reading == "whole", said))
            yield begun

    @contextmanager
    def fetching(self, loader: DataLoader[Any], begun: Pass | None) -> Iterator[None]:
        """Have the loader's own iterator that is made inside read this rank's part."""
        if self.fetch is None or begun is None or not begun.trains:
            yield
            return
        self._fetching = True
        try:
            with self.fetch.set(loader):
                yield
        finally:
            self._fetching = False

    def _left(self, start: Position) -> int:
        try:
            return len(self) - start.batches if self._seeded is None else self._seeded.left(start)
        except TypeError:  # of no known length
            return 0

    def __iter__(self) -> Iterator[list[int]]:
        if self._asked:
            self._last = self._asked.popleft()
        asked = self._last
        if asked is None or asked.used or asked.begun is None:
            return iter(self.source)
        start = asked.begun.position
        source = iter(self.source) if self._seeded is None else self._seeded.batches(start)
        if self._fetching:
            asked.fetch = self.fetch
        return self._deal(source, asked, asked.begun)

    def _deal(
        self, source: Iterator[list[int]], asked: _Beginning, begun: Pass
    ) -> Iterator[list[int]]:
        asked.used = True
        micros, fetch = asked.micros, asked.fetch
        rank = 0 if asked.whole else self._communicator.rank
        now = None
        if begun.trains and self._seeded is None:
            now = self._drawn.first(again=begun.position.batches > 0)
        if self._order is not None and begun.trains:
            source = self._order.drawn(source, asked.said)
        for batch, digest in self._from(begun, source, now):
            if self._divided.draw is not None and begun.trains:
                self._divided.draw(self, self._size(batch))
            share = (_UNDIVIDED if asked.whole else self._divided.now).share(len(batch), rank)
            mine = batch[share.cut]
            chosen = None
            if fetch is not None and micros == 1:
                chosen = fetch.choose(batch, share.cut)
            if chosen is not None:
                begun.drawn(share, digest)
                yield chosen
                continue
            for part in micro_shares(share, micros) if micros > 1 else (share,):
                begun.drawn(part, digest)
                taken, mine = mine[: part.count], mine[part.count :]
                # A collate function needs a sample to show its shape; the loader drops it again.
                yield taken if part.count else batch[:1]

    def _size(self, batch: list[int]) -> int:
        """Samples of a whole global batch."""
        return self.batch_size or len(batch)

    def _from(
        self, begun: Pass, batches: Iterator[list[int]], now: States | None
    ) -> Iterator[tuple[list[int], int]]:
        """The batches that are to be handed out yet, each with the digest of all up to it. now: the
        generators' states after those that were handed out before."""
        if self._seeded is not None:
            yield from ((batch, 0) for batch in batches)
            return
        start = begun.position
        digest, read = 0, 0
        for batch in batches:
            digest, read = chained(digest, _said(batch)), read + 1
            if read > start.batches:
                yield batch, digest
            elif read == start.batches:
                check_read_again(digest, start)
                self._drawn.go_on(now)
        check_long_enough(read, start)
        if self._order is not None and begun.trains:
            self._order.ended(digest)


def _facts(loader: DataLoader[Any]) -> dict[str, Any]:
    try:
        return {"batch_size": loader.batch_size, "length": len(loader.dataset)}  # type: ignore[arg-type]
    except TypeError:
        return {"batch_size": loader.batch_size}


def _said(batch: list[Any]) -> bytes:
    """Return what tells a batch from another: at every step, so the quick way where its samples
    are numbers."""
    try:
        return array("q", batch).tobytes()
    except (TypeError, OverflowError):
        return repr(batch).encode()
