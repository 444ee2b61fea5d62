"""The share of a global batch that a forward pass works on.

A loader says so as it yields; the tensors it yields remember it too, so that batches which are
read ahead, or kept in a list, still carry their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from dream._errors import DreamError
from dream.adapters.pytorch.data.earlier_tensors import tensors_named
from dream.adapters.pytorch.data.held_batch import HeldBatch, Mark
from dream.adapters.pytorch.data.pass_reading import PassReading
from dream.adapters.pytorch.data.replicated_rows import ReplicatedRows, may_be_rows
from dream.adapters.pytorch.data.threads import Threads
from dream.adapters.pytorch.loss.coupling.origins import is_in_place
from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.joins import joins
from dream.data.partition import Division, Share

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.reading import Reader


@final
class Shares:
    """The shares of batches: of the tensors still alive, of views of these, and of copies by the
    order in which batches come. given: told of each that a loader hands out; follow: of the batch
    itself too. dealt: how many batches in parts the loop has come by, not counting those that a
    thread reads for it; as many on every rank."""

    def __init__(self) -> None:
        self.dealt = 0
        self._begun = self._gives_whole = False
        self.given: Callable[[Share], None] | None = None
        self.follow: Callable[[object, Share], None] | None = None
        self._passed: Callable[[], None] | None = None
        self.alike = ReplicatedRows()
        self._readings: dict[int, PassReading] = {}
        self._whole = False
        self._handed = 0
        self.threads = Threads(self._made_in_thread)
        self.held = HeldBatch()
        self.marks = self.held.marks

    @property
    def current(self) -> Share | None:
        """The share of the batch that the loop holds; None where it has none."""
        return self.of_draws(None)

    @property
    def handed_out(self) -> int:
        """Count the batches that have been."""
        return self._handed

    def of_draws(self, like: object) -> Share | None:
        """That of the batch that the loop draws beside. like: the tensor that it draws for."""
        if (mark := self.marks.itself(like)) is not None:
            return mark.share
        readings = [*reversed(self._readings.values())]
        open_ = [each for each in readings if not (each.apart or each.ended)]
        read = open_[0] if open_ else None
        if read is not None and len(open_) == 1 and not (self.marks.several or self.held.beside):
            return read.newest
        apart = next((each for each in readings if each.apart), None)
        mark = self.held.now() if apart is None else self._held_of_thread()
        if mark is not None:
            return mark.share
        if read is not None:
            return read.newest
        return apart.waiting[0] if apart is not None and apart.waiting else None

    def drawn_for(self, like: object) -> tuple[Share | None, bool]:
        """That of the batch which the loop draws for, and whether others could be meant as well.
        like: the tensor that it draws for, if any."""
        if not self.held.beside or self.apart:
            return self.of_draws(like), False
        mark = self.held.drawn_for(like)
        return (self.of_draws(like), True) if mark is None else (mark.share, False)

    @property
    def apart(self) -> bool:
        """Whether another thread reads, and may draw as it does."""
        return any(reading.apart for reading in self._readings.values())

    def follow_by(self, reader: Reader) -> None:
        """Have what is made of batches be followed, and what is made of rows that are no share."""
        lineage = reader.lineage
        self.follow, self._passed, lineage.alike = reader.begin, lineage.ended, self.alike
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
    def reads(self) -> bool:
        """Whether a loader is read now."""
        return any(not reading.ended for reading in self._readings.values())

    @property
    def now_parted(self) -> bool:
        """Whether several ranks share the batch that the loop holds: none of an evaluation."""
        share = None if self._whole else self.current
        return share is not None and share.parts > 1

    def parts(self, given: object) -> bool:
        """Whether several ranks share what this is of: the batch that a loader is read for, or one
        that the loop has kept, which nothing but its tensors tell from an evaluation's."""
        if self.reads:
            return self.now_parted
        leaves = (x for x in tree_leaves(given) if isinstance(x, torch.Tensor))
        return any((mark := self.marks.of(x)) and mark.share.parts > 1 for x in leaves)

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
        """Whether more batches are still there than a loop over such loaders leaves."""
        return self.marks.more_than_left(by=sum(not r.ended for r in self._readings.values()))

    def whole_begins(self) -> None:
        """A pass begins of which every rank reads all."""
        self._whole = True

    def yielded(self, batch: object, share: Share, source: object = None) -> None:
        """A loader hands out `batch`. source: the pass over it."""
        reading, begins = self._reading_of(source)
        reading.why = None
        if share.parts > 1 and not self._begun:
            self._begun = True
            self.alike.made_before(tensors_named())
        if share.parts > 1 and current.is_apart():
            reading.waiting.append(share)
            self.threads.follow()
        elif share.parts > 1:
            self.dealt += 1
        if self.given is not None:
            self.given(share)
        reading.yields(share)
        self._whole = False
        self.marks.put(batch, share, reading, self._handed)
        if self.follow is not None:
            self.follow(batch, share)
        if share.parts > 1:
            others = (each for each in self._readings.values() if each is not reading)
            beside = any(not (each.apart or each.ended) for each in others)
            self.held.handed(first=begins, beside=beside)

    def _reading_of(self, source: object) -> tuple[PassReading, bool]:
        """That of a pass which hands out a batch; and whether it begins."""
        known = self._readings.get(key := id(source))
        reading = PassReading() if known is None or known.ended else known
        begins = reading is not known
        if begins or next(reversed(self._readings)) != key:  # the last one is read now
            others = self._readings.items()
            kept = {k: r for k, r in others if k != key and not (begins and r.ended)}
            self._readings = {**kept, key: reading}
        reading.thread, self._handed = current.here(), self._handed + 1
        return reading, begins

    def handed_whole(self, batch: object, count: int, source: object, why: str = "") -> None:
        """Every rank has all of a batch of so many rows. source: the pass over it. why: a line that
        is said if the loop trains on it."""
        reading, share = self._reading_of(source)[0], Division(1).share(count, 0)
        self._gives_whole, reading.why = True, why
        reading.yields(share)
        self.marks.put(batch, share, reading, self._handed)

    def why_whole(self, inputs: Iterable[object]) -> str | None:
        """Return what is to be said where one of these is a tensor of such a batch."""
        mark = self.marks.first(inputs)
        why: str | None = None if mark is None else mark.reading.why
        return why

    def ended(self, source: object = None) -> None:
        """A pass is over: what comes now is not its batch, save what was read ahead."""
        reading = self._readings.get(id(source))
        if reading is not None and not reading.ended:
            reading.yields(None)
            if reading.why is not None:
                return  # of an evaluation, maybe, in the midst of a pass that ranks share
            self.held.ended()
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

    def handed(self, inputs: Iterable[object]) -> Share | None:
        """The share that one of these is a tensor of, as a loader handed it out."""
        marks = (self.marks.of(x) for x in inputs if isinstance(x, torch.Tensor))
        return next((mark.share for mark in marks if mark is not None), None)

    def of(self, inputs: Iterable[object]) -> Share | None:
        """The share of a forward pass on `inputs`; None for what every rank has whole."""
        share = self._of(inputs)
        whole = share is not None and share.parts == 1 and (self._begun or self._gives_whole)
        return None if whole else share

    def _of(self, inputs: Iterable[object]) -> Share | None:
        if not self._readings:
            return None
        given = list(inputs)
        mark = self.marks.first(given)
        if mark is None:
            leaves = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
            mark = next((mark for x in leaves if (mark := self.marks.of(x)) is not None), None)
        if self.held.entered:
            self.held.called(mark, reads=self.reads)
        if mark is None and (joined := joins.shares_in(leaves)):
            return self._of_joined(joined)
        if mark is None:
            self.held.missed()
            return self._unmarked(leaves)
        mark.reading.trained_on(mark.share)
        return mark.share

    def _of_joined(self, shares: Sequence[Share]) -> Share:
        """That of one of the batches that were joined, the same loader's in every step and on every
        rank: of the largest ones, unless a rank has no row of this batch."""
        largest = {}
        for reading in self._readings.values():
            for each in shares:
                if any(each is share for share in reading.recent):
                    reading.trained_on(each)
                    largest[id(each)] = reading.largest

        def size(share: Share) -> tuple[bool, int]:
            return share.total >= share.parts, largest.get(id(share), share.total)

        return max(shares, key=size)

    def holds(self, x: object) -> bool:
        """Whether a loader has handed out this very tensor."""
        return self.marks.itself(x) is not None

    def given_as(self, x: torch.Tensor) -> Share | None:
        """That of a tensor which a loader has handed out, or of one that every rank has whole."""
        mark = self.marks.itself(x)
        if mark is None:
            return Division(1).share(len(x), 0) if self.alike and x in self.alike else None
        return mark.share if mark.share.parts > 1 else None

    def newest(self) -> list[Share]:
        """Those of the batches that the loop has read last of each loader that it reads."""
        readings = reversed(self._readings.values())
        shares = (reading.newest for reading in readings if not (reading.apart or reading.ended))
        return [share for share in shares if share is not None and share.parts > 1]

    def share_out(self, tensors: Iterable[torch.Tensor], share: Share) -> None:
        """Mark what a script has dealt by hand."""
        reading = self._readings.setdefault(id(self), PassReading())
        reading.ended = True  # it is no pass that later batches could be of
        for x in tensors:
            self.marks.put(x, share, reading, self._handed)

    def _unmarked(self, leaves: Sequence[torch.Tensor]) -> Share | None:
        """That of a copy, or of what a loop made of a batch: of the one that it holds, or has read
        last, of those of as many rows. None for rows that are no batch's."""
        apart = [reading for reading in self._readings.values() if reading.apart]
        ahead = any(reading.ahead for reading in self._readings.values())
        reads = sum(not (reading.apart or reading.ended) for reading in self._readings.values())
        kept = self.marks.several and not ahead
        asks = not ahead and (kept if reads == 1 else not reads)
        mark = self._held_of_thread() if apart else self.held.now() if asks else None
        shares = [
            share
            for reading in reversed(self._readings.values())
            if not reading.apart and ((reading.lag and not kept) or not reading.ended)
            and (share := reading.share()) is not None
        ]  # fmt: skip
        held = [*(() if mark is None else (mark.share,)), *shares]
        counts = [share.count for share in held]
        of_ranks = [n for share in held for n in (share.largest, share.total // share.parts)]
        if self.alike and self.alike.call(leaves, [*counts, *of_ranks]):
            return None
        if mark is not None:
            return mark.share
        sizes = [x.shape[:2] for x in leaves if not x.is_nested]
        rows = [{size[at] for size in sizes if len(size) > at} for at in (0, 1)]
        fitting = (share for along in rows for share in shares if share.count in along)
        found = next(fitting, shares[0] if shares else None)
        return self._in_turn(leaves, apart[-1]) if found is None and apart else found

    def _in_turn(self, leaves: Sequence[torch.Tensor], reading: PassReading) -> Share | None:
        """That of the batch which a thread has read first of those that nobody has trained on."""
        if not leaves or not reading.waiting:
            return None
        share = reading.waiting.popleft()
        self.marks.put(leaves[0], share, reading, self._handed)
        return share

    def _held_of_thread(self) -> Mark | None:
        """That of the batch, of those that another thread reads, which the loop holds."""
        begins = self.threads.follow()
        mark = self.held.now(lambda mark: mark.reading.apart)
        waits = any(reading.waiting for reading in self._readings.values())
        if mark is None and waits and not begins:
            self.threads.tell_unknown()
        return mark

    def _made_in_thread(
        self, func: Any, given: Any, made: Any
    ) -> tuple[list[torch.Tensor], int] | None:
        """What is made of a batch's rows is of that batch: of the newest, where of several."""
        leaves = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
        marks = [mark for x in leaves if (mark := self.marks.itself(x)) is not None]
        if not marks:
            return None
        mark = max(marks, key=lambda mark: mark.at)
        count = mark.share.count
        outs = leaves[:1] if is_in_place(getattr(func, "__name__", "")) else tree_leaves(made)
        for x in outs:
            if isinstance(x, torch.Tensor) and may_be_rows(x, count):
                self.marks.put(x, mark.share, mark.reading, mark.at)
        return [x for each in marks if (x := each.x()) is not None], count
