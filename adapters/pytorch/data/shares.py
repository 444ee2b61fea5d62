"""The share of a global batch that a forward pass works on.

A loader says so as it yields; the tensors it yields remember it too, so that batches which are
read ahead, or kept in a list, still carry their own.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final
from weakref import ref

import torch

from dream._errors import DreamError
from dream.adapters.pytorch.data.before import tensors_before
from dream.adapters.pytorch.data.threads import Threads, held_by_scopes
from dream.adapters.pytorch.data.whole import WholeRows, may_be_rows, memory_of
from dream.adapters.pytorch.loss.coupling.made import MadeOfBatches
from dream.adapters.pytorch.loss.coupling.origins import in_batch, is_in_place
from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.randomness.current import current
from dream.data.partition import Share

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.coupling.lineage import Lineage

_FAR = 8
"""Batches that a loop reads ahead, at most."""
_LEFT = 2
"""Batches that are still there after a loop: the last one, and that which was trained on last."""


@final
class PassReading:
    """A pass over a loader. recent: shares of the batches handed out last; a tuple, as a thread may
    read for another. lag: batches between what is yielded and what is trained on, once that is
    known: a prefetcher's. thread: that reads. waiting: what it has read, and nobody has trained on
    yet, where that is told by the order."""

    def __init__(self) -> None:
        self.recent: tuple[Share | None, ...] = ()
        self.lag: int | None = None
        self.ended = False
        self.thread = current.here()
        self.waiting: deque[Share] = deque()

    @property
    def newest(self) -> Share | None:
        """That of the batch handed out last."""
        return self.recent[-1] if self.recent else None

    @property
    def apart(self) -> bool:
        """Whether another thread reads it."""
        return self.thread != current.here()

    def yields(self, share: Share | None) -> None:
        """It hands out a batch; None for that there is none left."""
        self.recent = (*self.recent[-_FAR:], share)
        self.ended = share is None

    def share(self) -> Share | None:
        """That of the batch that is trained on now, as far as yields tell."""
        if self.lag is None:
            many = len(self.recent)
            self.lag = many - 1 if many <= _FAR else 0  # more were skipped, not kept
        place = len(self.recent) - 1 - self.lag
        return self.recent[place] if place >= 0 else None

    def trained_on(self, share: Share) -> None:
        """It is known which batch is trained on."""
        while self.waiting and any(each is share for each in self.waiting):
            self.waiting.popleft()
        for lag, each in enumerate(reversed(self.recent)):
            if each is share:
                self.lag = lag
                return


@final
class Mark(NamedTuple):
    """Which share a tensor is of. at: how many batches had been handed out. made: whether a loop
    has made it of what was handed out."""

    x: ref[torch.Tensor]
    share: Share
    reading: PassReading
    at: int
    made: bool = False


@final
class Shares:
    """The shares of batches: of the tensors still alive, of views of these, and of copies by the
    order in which batches come. given: told of each that a loader hands out; follow: of the batch
    itself too. dealt: how many batches in parts the loop has come by, not counting those that a
    thread reads for it; as many on every rank."""

    def __init__(self) -> None:
        self.dealt = 0
        self._begun = False
        self.given: Callable[[Share], None] | None = None
        self.follow: Callable[[object, Share], None] | None = None
        self._passed: Callable[[], None] | None = None
        self.alike = WholeRows()
        self._readings: dict[int, PassReading] = {}
        self._whole = False
        self._marked: dict[int, Mark] = {}
        self._kept: dict[int, Mark] = {}
        self._handed = 0
        self.threads = Threads(self._made_in_thread)
        self.made = MadeOfBatches(
            self._mark_of, lambda x, of: self._mark(x, of.share, of.reading, of.at, made=True)
        )

    @property
    def current(self) -> Share | None:
        """The share of the batch that the loop holds; None where it has none."""
        apart = None
        for reading in reversed(self._readings.values()):
            if reading.apart:
                apart = apart or reading
            elif not reading.ended:
                return reading.newest
        if apart is None:
            return self.made.held
        held = self._held_here()
        return apart.waiting[0] if held is None and apart.waiting else held

    def of_draws(self) -> Share | None:
        """That of the batch that the loop draws beside."""
        self.made.used()
        return self.current

    @property
    def apart(self) -> bool:
        """Whether another thread reads, and may draw as it does."""
        return any(reading.apart for reading in self._readings.values())

    def follow_by(self, lineage: Lineage) -> None:
        """Have what is made of batches be followed, and what is made of rows that are no share."""
        self.follow, self._passed, lineage.alike = lineage.begin, lineage.ended, self.alike
        self.alike.woken = lineage.wake

    def explain(self, error: BaseException | None) -> None:
        """Add to what ended the block's loop how many of the batch's samples it held."""
        dealt = [share for reading in self._readings.values() for share in reading.recent if share]
        if not dealt or not isinstance(error, Exception) or isinstance(error, DreamError):
            return
        count, total, sizes = dealt[-1].count, dealt[-1].total, re.findall(r"\d+", str(error))
        if not count:
            error.add_note(
                "This rank has no sample of the last batch, which has fewer than there are ranks. "
                "Pass drop_last=True, or choose a batch_size that leaves every rank a sample."
            )
        elif count < total and {str(count), str(total)} <= {*sizes}:
            error.add_note(
                f"This rank has {count} of the batch's {total} samples, and {count} rows. Take "
                "sizes from the batch, as len(x), not from what its loader was given."
            )

    @property
    def now_parted(self) -> bool:
        """Whether several ranks share the batch that the loop holds: none of an evaluation."""
        share = None if self._whole else self.current
        return share is not None and share.parts > 1

    def parts(self, given: object) -> bool:
        """Whether several ranks share what this is of: the batch that a loader is read for, or one
        that the loop has kept, which nothing but its tensors tell from an evaluation's."""
        if self.made.held is None or not self.now_parted or self.current is not self.made.held:
            return self.now_parted
        leaves = (x for x in tree_leaves(given) if isinstance(x, torch.Tensor))
        return any((mark := self._mark_of(x)) and mark.share.parts > 1 for x in leaves)

    @property
    def parted(self) -> bool:
        """Whether the loop reads, or has just read, batches that several ranks share."""
        for reading in self._readings.values():  # asked at every step
            for share in reading.recent:
                if share is not None and share.parts > 1:
                    return True
        return False

    @property
    def kept(self) -> bool:
        """Whether more batches that were handed out are still there than a loop leaves, as in a
        list."""
        found: set[int] = set()
        for mark in self._marked.values():  # asked at every step on what is no share
            if mark.share.parts > 1:
                found.add(mark.at)
                if len(found) > _LEFT:
                    return True
        return False

    def whole_begins(self) -> None:
        """A pass begins of which every rank reads all."""
        self._whole = True

    def yielded(self, batch: object, share: Share, source: object = None) -> None:
        """A loader hands out `batch`. source: the pass over it."""
        key, others = id(source), {**self._readings}
        reading = others.pop(key, None)
        begins = reading is None or reading.ended
        if reading is None or begins:
            reading = PassReading()
            others = {k: r for k, r in others.items() if not r.ended}
        self._readings = {**others, key: reading}  # the last one is read now
        reading.thread, self._handed = current.here(), self._handed + 1
        if share.parts > 1 and not self._begun:
            self._begun = True
            self.alike.made_before(tensors_before())
        if share.parts > 1 and current.is_apart():
            reading.waiting.append(share)
            self.threads.follow()
        elif share.parts > 1:
            self.dealt += 1
        if self.given is not None:
            self.given(share)
        reading.yields(share)
        self._whole = False
        self._mark(batch, share, reading, self._handed)
        if self.follow is not None:
            self.follow(batch, share)
        if share.parts > 1:
            self.made.handed(first=begins)

    def ended(self, source: object = None) -> None:
        """A pass is over: what comes now is not its batch, save what was read ahead."""
        reading = self._readings.get(id(source))
        if reading is not None and not reading.ended:
            reading.yields(None)
            self.made.ended()
            if self._passed is not None:
                self._passed()

    def weight(self, inputs: Iterable[object]) -> float:
        """Weigh this rank's gradient: by that of the first marked input, else that of the
        batch yielded last, else an equal share's."""
        share = self.of(inputs)
        return 1.0 if share is None else share.weight

    def count(self, inputs: Iterable[object]) -> int | None:
        """Count this rank's samples likewise; None for what is no dealt batch."""
        share = self.of(inputs)
        return None if share is None else share.count

    def largest(self, inputs: Iterable[object]) -> int | None:
        """The largest share of the batch that any rank has; None for what is no dealt batch."""
        share = self.of(inputs)
        return None if share is None else share.largest

    def of(self, inputs: Iterable[object]) -> Share | None:
        """The share of a forward pass on `inputs`; None for what is no dealt batch."""
        if not self._readings:
            return None
        given = list(inputs)
        for value in given:
            mark = self._marked.get(id(value))
            if mark is not None and mark.x() is value:
                return self._trained_on(mark)
        leaves = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
        for x in leaves:
            if (mark := self._mark_of(x)) is not None:
                return self._trained_on(mark)
        if self.made.entered:
            self._call(made=False)
        return self._by_order(leaves, self._named_here() if self.made.missed() else None)

    def _trained_on(self, mark: Mark) -> Share:
        if self.made.entered:
            self._call(made=mark.made)
        mark.reading.trained_on(mark.share)
        return mark.share

    def _call(self, *, made: bool) -> None:
        reads = any(not each.ended for each in self._readings.values())
        self.made.called(reads=reads, made=made)

    def holds(self, x: object) -> bool:
        """Whether a loader has handed out this very tensor."""
        mark = self._marked.get(id(x))
        return mark is not None and mark.x() is x

    def share_out(self, tensors: Iterable[torch.Tensor], share: Share) -> None:
        """Mark what a script has dealt by hand."""
        reading = self._readings.setdefault(id(self), PassReading())
        reading.ended = True  # it is no pass that later batches could be of
        for x in tensors:
            self._mark(x, share, reading, self._handed)

    def _by_order(self, leaves: Sequence[torch.Tensor], named: Share | None) -> Share | None:
        """That of a copy, or of what a loop made of a batch: of as many rows, the last read
        first. None for rows that are no batch's. named: of the one that the script names, where
        it may be that."""
        shares = [
            share
            for reading in reversed(self._readings.values())
            if not reading.apart and (reading.lag or not reading.ended)
            and (share := reading.share()) is not None
        ]  # fmt: skip
        apart = [reading for reading in self._readings.values() if reading.apart]
        if apart and (held := self._held_here()) is not None:
            shares.append(held)
        counts = [share.count for share in shares if share is not named]
        if named is not None:
            counts.append(named.count)
        if self.alike and self.alike.call(leaves, counts):
            return None
        rows = {size for x in leaves if not x.is_nested for size in x.shape[:2]}
        if named is not None and named.count in rows:
            return named
        fitting = (share for share in shares if share.count in rows)
        found = next(fitting, shares[0] if shares else None)
        return self._in_turn(leaves, apart[-1]) if found is None and apart else found

    def _in_turn(self, leaves: Sequence[torch.Tensor], reading: PassReading) -> Share | None:
        """That of the batch which a thread has read first of those that nobody has trained on."""
        if not leaves or not reading.waiting:
            return None
        share = reading.waiting.popleft()
        self._mark(leaves[0], share, reading, self._handed)
        return share

    def _held_here(self) -> Share | None:
        """That of the batch which the script's variables hold, where another thread reads."""
        begins = self.threads.follow()
        for held in held_by_scopes():
            marks = [mark for x in held if (mark := self._mark_of(x)) and mark.reading.apart]
            if marks:
                return max(marks, key=lambda mark: mark.at).share
        if not begins and any(reading.waiting for reading in self._readings.values()):
            self.threads.tell_unknown()
        return None

    def _named_here(self) -> Share | None:
        """That of the one batch which the script's variables name."""
        for held in held_by_scopes():
            found = {mark.at: mark for x in held if (mark := self._mark_of(x))}
            if found:
                return next(iter(found.values())).share if len(found) == 1 else None
        return None

    def _mark_of(self, x: torch.Tensor) -> Mark | None:
        mark = self._marked.get(id(x)) or self._kept.get(memory_of(x))
        kept = None if mark is None else mark.x()
        return mark if kept is not None and _shares(kept, x) else None

    def _made_in_thread(
        self, func: Any, given: Any, made: Any
    ) -> tuple[list[torch.Tensor], int] | None:
        """What is made of a batch's rows is of that batch: of the newest, where of several."""
        leaves = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
        marks = [mark for x in leaves if (mark := self._marked.get(id(x))) and mark.x() is x]
        if not marks:
            return None
        mark = max(marks, key=lambda mark: mark.at)
        count = mark.share.count
        outs = leaves[:1] if is_in_place(getattr(func, "__name__", "")) else tree_leaves(made)
        for x in outs:
            if isinstance(x, torch.Tensor) and may_be_rows(x, count):
                self._mark(x, mark.share, mark.reading, mark.at)
        return [x for each in marks if (x := each.x()) is not None], count

    def _mark(
        self, batch: object, share: Share, reading: PassReading, at: int, *, made: bool = False
    ) -> None:
        if isinstance(batch, torch.Tensor):
            key, memory = id(batch), memory_of(batch)
            gone = ref(batch, lambda _: self._forget(key, memory, share))
            self._marked[key] = mark = Mark(gone, share, reading, at, made)
            if memory:
                self._kept[memory] = mark
        elif isinstance(batch, dict):
            for value in batch.values():
                self._mark(value, share, reading, at)
        elif isinstance(batch, (list, tuple)):
            for value in batch:
                self._mark(value, share, reading, at)
        elif hasattr(batch, "__dict__"):
            for value in in_batch(batch):
                self._mark(value, share, reading, at)

    def _forget(self, key: int, memory: int, share: Share) -> None:
        self._marked.pop(key, None)
        kept = self._kept.get(memory)
        if kept is not None and kept.share is share:
            self._kept.pop(memory, None)


def _shares(kept: torch.Tensor, x: torch.Tensor) -> bool:
    return kept is x or (memory_of(kept) == memory_of(x) and len(kept.shape) > 0)
