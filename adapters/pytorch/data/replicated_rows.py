"""Tensors that every rank has alike, though a loop shares its batches: noise of a size that the
script has written down, what it made before its loop, and what is made of these.

A call on such rows is a whole one: its loss counts once, its dropout and its batch norms are of
these rows alone. They are known from where they are drawn; what is made of them is followed in the
loop's first steps, and known by its shape from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, final
from weakref import ref

import torch

from dream._log import logger
from dream.adapters.pytorch.data.digests import contents_of, is_lent
from dream.adapters.pytorch.private import version_of
from dream.adapters.pytorch.randomness.sites import place_in_script
from dream.data.partition import Share

_MOST = 1000
_WRITTEN = (
    "the loop writes what it made of its batch, of which a rank has its share, into %d rows that "
    "every rank draws alike: they are not those of one device. Draw as many rows as the batch has, "
    "by its own length, or write those of all ranks, by strategy.communicator.all_gather"
)
_TAKEN = (
    "the loop takes %d of %d rows that every rank draws alike, as many as this rank has of its "
    "batch: they are taken for the batch's, and are not those that one device takes. Draw as many "
    "as the batch has, as by torch.randint(n, (len(batch),)), or another number of them"
)


@final
class CallPlace(NamedTuple):
    """Where a model is called, and on tensors of which sizes. fits: of as many rows as the share's;
    what is before it is the same on every rank."""

    common: tuple[int, tuple[tuple[int, ...], ...]]
    fits: bool


@final
class ReplicatedRows:
    """Knows tensors that every rank has alike, in one block. woken: told of a share when rows of a
    new shape are drawn, to have what is made of them be followed."""

    def __init__(self) -> None:
        self.woken: Callable[[Share], None] | None = None
        self._told = False
        self._drawn: set[tuple[int, ...]] = set()
        self._held: dict[int, ref[torch.Tensor]] = {}
        self._memory: dict[int, tuple[ref[torch.Tensor], int]] = {}
        self._before: dict[int, tuple[ref[torch.Tensor], int, int, int]] = {}
        self._called: set[tuple[int, ...]] = set()
        self._of_batches: set[tuple[int, ...]] = set()
        self._written: set[tuple[int, ...]] = set()
        self._judged: dict[CallPlace, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._held or self._before or self._called)

    def place_of(self, given: Sequence[torch.Tensor], count: int) -> CallPlace:
        """Return where a model is called now, on these. count: of the share's rows."""
        sizes = tuple(tuple(x.shape[1:]) for x in given if x.dim() and not x.is_nested)
        fits = any(x.dim() and x.shape[0] == count for x in given if not x.is_nested)
        return CallPlace((place_in_script(), sizes), fits)

    def judged(self, place: CallPlace) -> bool | None:
        """Whether what is called there was alike on every rank; None where nobody has looked."""
        other = place._replace(fits=not place.fits)
        return self._judged.get(place, self._judged.get(other))

    def judge(self, place: CallPlace, given: Iterable[torch.Tensor], *, whole: bool) -> None:
        """It was found, on every rank alike."""
        self._judged[place] = whole
        for x in given if whole else ():
            if x not in self:
                self._note(x)

    def _judged_whole(self, given: Sequence[torch.Tensor], counts: Collection[int]) -> bool:
        if True not in self._judged.values():
            return False
        return self.judged(self.place_of(given, next(iter(counts), 0))) is True

    @property
    def called(self) -> bool:
        """Whether a model was called on such rows."""
        return bool(self._called)

    def __contains__(self, x: torch.Tensor) -> bool:
        before = self._before.get(id(x))
        if before is not None and before[0]() is x:
            if not before[3] and is_lent(x):
                return False  # who knows what NumPy has written since
            return before[1:] == _state_of(x)
        return self._is_drawn(x)

    def _is_drawn(self, x: torch.Tensor) -> bool:
        """Whether it is known itself, or by all of its memory."""
        held = self._held.get(id(x))
        if held is not None and held() is x:
            return True
        found = self._memory.get(memory := memory_of(x))
        if found is None or found[1] != x.numel() or (kept := found[0]()) is None:
            return False
        return memory_of(kept) == memory  # else it was given other memory, and x has what it had

    def drawn(self, x: torch.Tensor, share: Share | None) -> None:
        """It was drawn, alike on every rank. share: of the batch that the loop holds, if any."""
        if share is None and len(self._held) > _MOST:
            return  # a set of data, sample by sample
        self._note(x)
        if share is not None and tuple(x.shape) not in self._drawn:
            self._drawn.add(tuple(x.shape))
            if self.woken is not None:
                self.woken(share)

    def made_before(self, tensors: Iterable[torch.Tensor]) -> None:
        """They were there before the first batch was, or are made of nothing but sizes and of such:
        nothing of a batch is in them until they are written to."""
        for x in tensors:
            if x.dim() and not (isinstance(x, torch.nn.Parameter) or x.is_inference()):
                if not x.numel():
                    continue  # a rank's own, as of a batch that leaves it without a sample
                key = id(x)
                gone = ref(x, lambda _, key=key: self._before.pop(key, None))  # type: ignore[misc]
                self._before[key] = gone, *_state_of(x)

    def lent(self, x: torch.Tensor) -> None:
        """NumPy was shown its memory, after which no version tells of what is written there."""
        before = self._before.get(id(x))
        if before is None or before[0]() is not x:
            return
        if before[1:] == (version_of(x), memory_of(x), 0):
            self.made_before([x])

    def _note(self, x: torch.Tensor) -> None:
        if not x.numel():
            return
        key, memory = id(x), memory_of(x)

        def forget(_: object) -> None:
            self._held.pop(key, None)
            found = self._memory.get(memory)
            if found is not None and found[0]() is None:
                del self._memory[memory]

        self._held[key] = held = ref(x, forget)
        if memory:
            self._memory[memory] = held, x.numel()

    def follow(
        self, given: Sequence[torch.Tensor], made: Iterable[torch.Tensor], count: int,
        anew: Callable[[torch.Tensor], bool],
    ) -> None:  # fmt: skip
        """Something was made of tensors that nothing of a batch has gone into, as far as can be
        seen. count: of the share's rows: what has as many, or some times as many, may have come of
        them by NumPy. anew: whether a tensor of other rows, made of such alone, is known too."""
        known = [x for x in given if x in self]
        others = [x for x in given if not (x in self or isinstance(x, torch.nn.Parameter))]
        if not known or any(may_be_rows(x, count) for x in others):
            return
        rows = {tuple(x.shape[:1]) for x in known}
        alone = not any(x.dim() for x in others)
        new = [
            x
            for x in made
            if x.dim() and x not in self
            and (tuple(x.shape[:1]) in rows or (alone and anew(x)))
        ]  # fmt: skip
        if any(map(self._is_drawn, known)):
            for x in new:
                self._note(x)
        else:
            self.made_before(new)

    def taken(self, given: torch.Tensor, made: Iterable[torch.Tensor], count: int) -> None:
        """Some of a tensor, as of a permutation, was taken by number."""
        for x in made:
            as_many = given.dim() == 1 and x.shape == (count,) and count < len(given)
            if as_many and not self._told and self._is_drawn(given):
                self._told = True
                logger.info(_TAKEN, count, len(given))

    def written(self, given: Sequence[torch.Tensor], count: int) -> None:
        """Something was written into the first of these: rows of a batch make it theirs."""
        others = (x for x in given[1:] if x not in self)
        if given and self._is_drawn(given[0]) and any(may_be_rows(x, count) for x in others):
            if not self._written:
                logger.info(_WRITTEN, *given[0].shape[:1])
            self._written.add(tuple(given[0].shape))

    def of_batch(self, x: torch.Tensor) -> None:
        """A call's input is of a batch."""
        self._of_batches.add(tuple(x.shape))

    def call(self, inputs: Sequence[torch.Tensor], counts: Collection[int]) -> bool:
        """Whether a call on these is a whole one. counts: rows of the shares that it may be on."""
        if self._judged_whole(inputs, counts):
            return True
        if any(tuple(x.shape) in self._written for x in inputs):
            return False
        known = [x for x in inputs if x in self]
        others = [x for x in inputs if x.dim() and not any(x is each for each in known)]
        if not all(self._looks_so(x, counts) for x in others):
            return False
        for x in known:
            self._called.add(tuple(x.shape))
        return bool(known or others)

    def _looks_so(self, x: torch.Tensor, counts: Collection[int]) -> bool:
        shape = tuple(x.shape)
        if shape not in self._called or shape in self._of_batches:
            return False
        return shape[0] not in counts


def _state_of(x: torch.Tensor) -> tuple[int, int, int]:
    """Its version and where its memory is; and what is in it, where NumPy may write there."""
    return version_of(x), memory_of(x), contents_of(x) if is_lent(x) else 0


def may_be_rows(x: torch.Tensor, count: int) -> bool:
    """Whether sizes allow that it has a share's rows: first, or as time-first sequences have."""
    if x.is_nested:  # of sizes that do not divide
        return False
    sizes = x.shape[:2] if x.dim() > 2 or not x.is_floating_point() else x.shape[:1]
    return any(size and size % max(count, 1) == 0 for size in sizes)


def memory_of(x: torch.Tensor) -> int:
    """Where a tensor's memory begins; 0 where it has none that can be seen, or none yet."""
    try:
        storage = x.untyped_storage()
        return 0 if storage.device.type == "meta" else storage.data_ptr()  # fake ones would warn
    except (RuntimeError, NotImplementedError, ValueError):  # ValueError: of lazy modules
        return 0
