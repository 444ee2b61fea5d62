"""What this process draws random numbers for at the moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final
from zlib import crc32

import torch

from dream._errors import Unsupported
from dream.adapters.pytorch.private import recomputing
from dream.adapters.pytorch.randomness.rows import Place, Rows, lie_apart

State = list[torch.Tensor]
_MOST = 1000
"""Sizes that are remembered as nobody's rows."""


def state() -> State:
    """Return the state of torch's generators on this rank's devices."""
    found = [torch.default_generator.get_state()]
    if torch.cuda.is_initialized():
        found.append(torch.cuda.get_rng_state())
    return found


def set_state(saved: State) -> None:
    torch.set_rng_state(saved[0])
    if len(saved) > 1:
        torch.cuda.set_rng_state(saved[1])


def packed() -> bytes:
    """Return that state as it is kept, and told to other ranks."""
    return b"".join(each.numpy().tobytes() for each in state())


def go_on_from(saved: bytes) -> None:
    """Have the generators go on from there; a GPU's where there is one now and was one then."""
    whole = torch.frombuffer(bytearray(saved), dtype=torch.uint8)
    host = torch.get_rng_state().numel()
    found = [whole[:host].clone()]
    if len(whole) > host and torch.cuda.is_available():
        found.append(whole[host:].clone())
    set_state(found)


def same(one: State, other: State) -> bool:
    return all(map(torch.equal, one, other))


def _has_drawn(expected: State) -> bool:
    """Whether anything has drawn since the generators were so, or since a script has seeded torch's
    own by its methods, as by `torch.default_generator.manual_seed`."""
    now = state()
    if same(expected, now):
        return False
    seeded = torch.Generator().manual_seed(torch.initial_seed()).get_state()
    return not (torch.equal(now[0], seeded) and same(expected[1:], now[1:]))


def _without(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


Found = tuple[Rows, Place]


@final
class RowMemory:
    """Where the tensors that one model draws for have the batch's rows. drawn_for: what is known to
    have some, see `has_rows`. draws: of the call that runs."""

    def __init__(self) -> None:
        self._fixed: set[tuple[str, tuple[int, ...]]] = set()
        self._known: dict[tuple[str, int, tuple[int, ...]], tuple[int, Place]] = {}
        self.drawn_for: set[tuple[int, str, str, tuple[int, ...]]] = set()
        self.draws = 0

    def find(self, name: str, shape: Sequence[int], rows: Rows, x: object = None) -> Found | None:
        """Find the batch's rows in a shape that a call draws. Where the sizes leave a doubt, and
        on a rank without rows, it goes by what was drawn before. x: the tensor that it draws for,
        if any."""
        among = (*rows.joined, rows) if rows.joined else (rows,)
        for dim in (0, 1):
            known = self._known.get((name, dim, _without(shape, dim)))
            for each in among if known is not None else ():
                if known is not None and known[0] == len(each.runs) and each.holds(shape, known[1]):
                    return each, known[1]
        size = name, tuple(shape)
        found = None if size in self._fixed else _found_among(among, shape)
        if found is not None:
            of, place = found
            apart = lie_apart(x, of.count, place.each) if place.each > 1 else False
            if apart:
                found = of, (place := Place(0, place.each, copies=True))
            if of.count and apart is not None:
                self._known[name, place.dim, _without(shape, place.dim)] = len(of.runs), place
        elif rows.count and len(self._fixed) < _MOST:
            self._fixed.add(size)
        return found


def _found_among(among: Sequence[Rows], shape: Sequence[int]) -> Found | None:
    """Find which of these rows a shape has: all of some, and nothing else, first of all."""
    for each in among:
        just = len(shape) and shape[0] == each.count and (each.runs or not each.count)
        if just and (len(shape) > 1 or not each.count or each.count > len(each.runs)):
            return each, Place(0)
    for each in among:
        place = each.find(shape) if each.count and not each.flat else None
        if place is not None:
            return each, place
    return None


class _Thread(threading.local):
    """What is known of the thread that asks. reads: it draws for samples that are read. trains: it
    has called a model. apart: it reads batches for a loop that runs in another, whose calls and
    states are none of its own. works_for: the thread that it is a part of, or 0: dream's own."""

    reads = trains = apart = False
    works_for = 0


@final
class Current:
    """The draws of the call that runs, and of the loop around it.

    call: the rows of the call that runs; last: those of the one before, which a backward pass may
    repeat. memory: of the model that is called. divided: the last call was of several parts of a
    batch, one after the other. late: it came after the block, and what stands for torch's
    operations is gone until its backward pass. outside: gives the rows of the batch that the loop
    holds, for (a shape that it may have, the tensor that is drawn for, the operation). alike: told
    of what the loop draws that is not for them. owner: the thread that has opened the block.
    """

    def __init__(self) -> None:
        self.call: Rows | None = None
        self.last: Rows | None = None
        self.divided = self.late = False
        self.thread = _Thread()
        self.owner = threading.main_thread().ident or 0
        self._outside: Callable[[Sequence[int], object, str], Rows | None] | None = None
        self.alike: Callable[[torch.Tensor], None] | None = None
        self._aside: State | None = None
        self.forks = 0
        self._forked: State | None = None
        self.expected: State | None = None
        self._began: State = []
        self._stray = False
        self.memory = RowMemory()

    @property
    def rows(self) -> Rows | None:
        """The rows of the call that a draw is part of; None where it is of none."""
        if self.thread.apart:
            return None
        if self.call is not None:
            return self.call
        if self.last is None or not recomputing():
            return None
        if self.divided:
            raise Unsupported(
                "A backward pass draws again what a part of the batch drew, and cannot tell which. "
                "Received: torch.utils.checkpoint around random draws, in a model on several "
                "devices. Pass recompute=True instead of it, or use 'mirrored'."
            )
        return self.last

    @property
    def outside(self) -> Callable[[Sequence[int], object, str], Rows | None] | None:
        """None where this thread draws for no batch."""
        return None if self.thread.reads else self._outside

    @outside.setter
    def outside(self, rows: Callable[[Sequence[int], object, str], Rows | None] | None) -> None:
        self._outside = rows

    @contextmanager
    def again(self, rows: Rows | None, memory: RowMemory) -> Iterator[None]:
        """What is computed again inside draws for these rows."""
        held = self.call, self.last, self.memory
        self.call, self.last, self.memory = rows, None, memory
        try:
            yield
        finally:
            self.call, self.last, self.memory = held

    def here(self) -> int:
        """The script's thread that this is, or is a part of: as torch's are in a backward pass."""
        if recomputing():
            return self.owner
        return self.thread.works_for or threading.get_ident()

    def is_apart(self) -> bool:
        """Whether this is a thread of the script's own, which may read batches ahead for a loop."""
        return self.here() != self.owner and not self.thread.trains

    def caller(self) -> tuple[int, bool, bool]:
        """What a thread that works for this one is to know."""
        return self.here(), self.thread.reads, self.thread.apart

    @contextmanager
    def working_for(self, caller: tuple[int, bool, bool]) -> Iterator[None]:
        """Inside, this thread is a part of the one that has told so."""
        own = self.thread
        held = own.works_for, own.reads, own.apart
        own.works_for, own.reads, own.apart = caller
        try:
            yield
        finally:
            own.works_for, own.reads, own.apart = held

    def trains_here(self) -> None:
        """This thread calls a model."""
        self.thread.trains, self.thread.apart = True, False

    def begin(self) -> None:
        """A block begins: what it draws apart does not depend on the blocks before it."""
        self.forks, self.divided = 0, False

    def fork(self, rank: int) -> None:
        """Have what follows draw for this rank alone, save draws that are made `together`. Nothing
        is drawn for that: the script's own draws, as its data's order, are what they are without
        dream."""
        self._aside = state()
        self.forks += 1
        seed = crc32(torch.get_rng_state().numpy().tobytes()) << 28
        torch.manual_seed(seed + self.forks * 1021 + rank)
        self._forked = state()

    def drew_alone(self) -> bool:
        """Whether anything has been drawn since the fork."""
        return self._forked is not None and not same(self._forked, state())

    def join(self) -> None:
        """Go on in step."""
        if self._aside is not None:
            set_state(self._aside)
            self._aside = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Draw what all ranks draw alike. Operations that this is made of draw as they are."""
        if self.thread.apart:
            with self.reading():
                yield
            return
        held = self.call, self.last, self.thread.reads
        self.call, self.last, self.thread.reads = None, None, True
        own = None if self._aside is None else state()
        if self._aside is not None:
            set_state(self._aside)
        elif self.expected is not None and not recomputing():
            self._stray |= _has_drawn(self.expected)
        try:
            yield
        finally:
            self.call, self.last, self.thread.reads = held
            if own is not None:
                self._aside = state()
                set_state(own)
            elif self.expected is not None and not recomputing():
                self.expected = state()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is drawn inside is no batch's: it belongs to samples that are read, or to
        parameters."""
        held, self.thread.reads = self.thread.reads, True
        try:
            yield
        finally:
            self.thread.reads = held

    @property
    def watches(self) -> bool:
        """Whether draws are watched."""
        return self.expected is not None

    def watch(self) -> None:
        """Notice draws that are not made `together`."""
        self._began = self.expected = state()
        self._stray = False

    def pardon(self) -> None:
        """Whatever has been drawn is known, where draws are watched: reading data has, or a script
        has set the generators."""
        if self.expected is not None:
            self.expected = state()

    def drew(self) -> bool:
        """Whether anything at all has been drawn since the watch began; True where there is
        none."""
        return self.expected is None or not same(self._began, state())

    def strayed(self) -> bool:
        """Whether there were any. Ends the watch."""
        if self.expected is None:
            return False
        found = self._stray or _has_drawn(self.expected)
        self.expected = None
        return found


current = Current()
