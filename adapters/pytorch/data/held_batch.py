"""Which of the batches that loaders have handed out the loop holds now, as one of a list; and which
of them a tensor is of.

By the script's names first: those of what it calls, then those that the loops around that set. A
loop that is over holds none, though its names last. Where they tell nothing, by which batch the
loop has last used. All of that is alike on every rank; sizes, which are a rank's own, are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple, final
from weakref import ref

import torch

from dream.adapters.pytorch import private
from dream.adapters.pytorch.data.earlier_tensors import frames_of_script
from dream.adapters.pytorch.data.replicated_rows import memory_of
from dream.adapters.pytorch.loss.coupling.kept_rows import Alive
from dream.adapters.pytorch.loss.coupling.lowest_mode import LowestMode
from dream.adapters.pytorch.loss.coupling.origins import in_batch, is_in_place, tensors_of
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.words import (
    Places,
    goes_on,
    places_of,
    variables_of,
    words_at,
)
from dream.data.partition import Share

_LEFT = 2
"""Batches that are still there after a loop: the last one, and that which was trained on last."""
_MOST = 100
_LOOKS_UP = {"__getitem__", "embedding", "index_select"}
"""What has more dims than the numbers that are looked up."""
_IDLE = 8
"""Calls after which a loop over kept batches is taken for one whose names tell."""
_MISSED = 2
"""How often it is looked again for what a loop begins to make of them later."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.nn.Module)
_looking: set[int] = set()
"""Threads in which one of these looks: what that calls is nobody's."""


@final
class Mark(NamedTuple):
    """Which share a tensor is of. at: how many batches had been handed out. reading: the pass over
    a loader. made: whether a loop has made it of what was handed out."""

    x: ref[torch.Tensor]
    share: Share
    reading: Any
    at: int
    made: bool = False


@final
class Marks:
    """The tensors that batches have, or that were made of them, as long as they live."""

    def __init__(self) -> None:
        self._of: dict[int, Mark] = {}
        self._memory: dict[int, Mark] = {}
        self._alive: dict[int, int] = {}
        self._lasting = Alive()
        self._kinds: set[type] = set()

    def __bool__(self) -> bool:
        return bool(self._alive)

    @property
    def several(self) -> bool:
        """Whether more batches are still there than a loop leaves, as in a list."""
        return self.more_than_left(by=1)

    def more_than_left(self, by: int) -> bool:
        """The same of a loop over so many loaders."""
        return len(self._alive) > _LEFT * max(by, 1)

    def first(self, values: Iterable[object]) -> Mark | None:
        """That of the first of these which is such a tensor itself."""
        for x in values:
            mark = self._of.get(id(x))
            if mark is not None and mark.x() is x:
                return mark
        return None

    def itself(self, x: object) -> Mark | None:
        """That of this very tensor."""
        mark = self._of.get(id(x))
        return mark if mark is not None and mark.x() is x else None

    def of(self, x: torch.Tensor) -> Mark | None:
        """That of a tensor, or of the one whose memory it shares."""
        if (mark := self.itself(x)) is not None:
            return mark
        memory = memory_of(x) if self._memory else 0
        mark = self._memory.get(memory)
        kept = None if mark is None else mark.x()
        if kept is None or not len(kept.shape) or memory_of(kept) != memory:  # given other memory
            return None
        return mark

    def within(self, value: Any) -> Mark | None:
        """That of what a variable names: a tensor, or a batch of several; not of what holds several
        batches, as the list of all of them does, nor of a module's variables, which last."""
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if type(value) in self._kinds:
            value = in_batch(value)
        elif isinstance(value, dict):
            value = () if "__builtins__" in value else [*value.values()]
        if not isinstance(value, (list, tuple)):
            return None
        tensors = (x for x in value[:_MOST] if isinstance(x, torch.Tensor))
        return _only({mark.at: mark for x in tensors if (mark := self.of(x)) is not None})

    def put(
        self, batch: object, share: Share, reading: Any, at: int, *, made: bool = False
    ) -> None:
        """Have a batch's tensors be of this share."""
        if isinstance(batch, torch.Tensor):
            key, memory = id(batch), memory_of(batch)
            if (before := self._of.get(key)) is not None:
                self._forget(key, memory, before.x)
            gone = ref(batch, lambda own: self._forget(key, memory, own))
            self._of[key] = mark = Mark(gone, share, reading, at, made)
            self._alive[at] = self._alive.get(at, 0) + 1
            if memory:
                self._memory[memory] = mark
        elif isinstance(batch, dict):
            for value in batch.values():
                self.put(value, share, reading, at)
        elif isinstance(batch, (list, tuple)):
            for value in batch:
                self.put(value, share, reading, at)
        elif not isinstance(batch, _PLAIN):
            self._kinds.add(type(batch))
            for x in self._new_in(batch, at):
                self.put(x, share, reading, at)

    def _new_in(self, batch: object, at: int) -> Iterator[torch.Tensor]:
        """Yield the tensors that an object has: not those that it, or another, has had in another
        batch, as all of a dataset."""
        for x in in_batch(batch):
            if (before := self.itself(x)) is not None and before.at != at:
                self._forget(id(x), memory_of(x), before.x)
                self._lasting.add(x)
            if x not in self._lasting:
                yield x

    def keep(self, mark: Mark) -> None:
        """A model is called on what was made of a batch: if it is again, nobody makes it anew."""
        key = id(mark.x())
        if self._of.get(key) is mark:
            self._of[key] = mark._replace(made=False)

    def _forget(self, key: int, memory: int, own: ref[torch.Tensor]) -> None:
        """A tensor is gone, or of another batch. own: of its mark; one that was marked anew has
        another, though somebody may still hold the first."""
        mark = self._of.get(key)
        if mark is None or mark.x is not own:
            return
        del self._of[key]
        if self._alive[mark.at] > 1:
            self._alive[mark.at] -= 1
        else:
            del self._alive[mark.at]
        kept = self._memory.get(memory)
        if kept is not None and kept.x is mark.x:
            del self._memory[memory]


@final
class HeldBatch(LowestMode):
    """The batch that the loop holds. It sees what is made of a loader's first batch until a model
    is called to train, and of all of them where none is, as in a loop that keeps them in a list; of
    these then on, as long as names alone do not tell. Of all of them too where a loop reads several
    loaders and draws for what it made of their batches. beside: whether it reads several.

    What is made is of the batches that it was made of, by what every rank has alike: which they
    are, and how many dims it has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.marks = Marks()
        self._opened, self._rests, self._ended = False, True, False
        self.beside = self._draws = False
        self._idle = self._missed = 0
        self._used: tuple[Mark, Places] | None = None

    def open(self) -> None:
        """The block begins."""
        self._opened = True

    def close(self) -> None:
        """The block ends: what loaders hand out after it nobody would end to follow."""
        self._opened = False
        self._leave()

    def now(self, of: Callable[[Mark], bool] = bool) -> Mark | None:
        """That of the batch which the loop holds; None where it holds none. of: whether it may be
        this one."""
        if not self.marks:
            return None
        frames = [*frames_of_script()]
        if (mark := self._named(frames, of)) is not None:
            return mark
        if self._used is None or not of(self._used[0]):
            return None
        if not goes_on(self._used[1], places_of(frames)):
            return None
        self._idle = 0
        return self._used[0]

    def drawn_for(self, like: object) -> Mark | None:
        """That of the batch which the loop draws for, where it reads several loaders; None where
        nothing tells. like: the tensor that it draws for, if any."""
        self._draws = True
        if self._rests:
            self._rests, self._idle = False, 0  # followed from the next batch on
        if isinstance(like, torch.Tensor) and (mark := self.marks.of(like)) is not None:
            return mark
        for frame in frames_of_script():
            own = variables_of(frame)
            for names in words_at(frame.f_code, frame.f_lasti).given:
                if (mark := self._of_names(names, (own, frame.f_globals), bool)) is not None:
                    return mark
        return None

    def _named(self, frames: list[FrameType], of: Callable[[Mark], bool] = bool) -> Mark | None:
        words = [words_at(frame.f_code, frame.f_lasti) for frame in frames]
        for at, (frame, each) in enumerate(zip(frames, words, strict=True)):
            own = variables_of(frame)
            turns = any(outer.loop is not None for outer in words[at + 1 :])
            free = (each.free,) if turns and own is not frame.f_globals else ()
            for names in each.given:
                if (mark := self._of_names(names, (own, frame.f_globals), of)) is not None:
                    return mark
            for names in (*each.bound, *free):
                if (mark := self._of_names(names, (own,), of)) is not None:
                    return mark
        return None

    def _of_names(
        self, names: Iterable[str], scopes: tuple[Mapping[str, Any], ...],
        of: Callable[[Mark], bool],
    ) -> Mark | None:  # fmt: skip
        for name in names:
            with suppress(Exception):  # objects that stand for others may raise anything
                value = next((scope[name] for scope in scopes if name in scope), None)
                mark = self.marks.within(value)
                if mark is not None and of(mark):
                    return mark
        return None

    def handed(self, *, first: bool, beside: bool = False) -> None:
        """A loader hands out a batch. first: of its pass. beside: the loop reads others too."""
        if beside or first:
            self.beside = beside
        if first:
            self._rests, self._ended, self._used = False, False, None
            self._idle = self._missed = 0
        if not self._rests:
            self._enter()

    def ended(self) -> None:
        """A pass is over."""
        self._ended = True

    def called(self, mark: Mark | None, *, reads: bool) -> None:
        """A model is called to train. mark: of what it is called on, where that has one. reads:
        while a loader is read."""
        if not self.entered:
            return
        self._idle += 1
        if self.beside and not private.compiles():
            if self._idle > _IDLE and not self._draws:
                self._leave()
        elif reads or private.compiles():
            self._leave()
        elif mark is not None and mark.made:
            named = self._named([*frames_of_script()], lambda each: not each.made)
            if named is None or named.at != mark.at:
                self._idle = 0
            self.marks.keep(mark)
        if self._idle > _IDLE and not self.beside:
            self._leave()

    def missed(self) -> None:
        """A model is called on what is of no batch, as far as is known: a loop may have begun to
        change what it kept, while nobody looked; or does so for ever with what is no batch's."""
        if self._rests and self._ended and self._missed < _MISSED:
            self._rests, self._idle, self._missed = False, 0, self._missed + 1
            self._enter()

    def _enter(self) -> None:
        if self._opened and not (self.entered or current.is_apart() or private.compiles()):
            self.put()

    def _leave(self) -> None:
        self._rests, self._used = True, None
        self.take()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        if self._rests or torch.compiler.is_compiling():
            return made
        if (here := get_ident()) not in _looking:
            _looking.add(here)
            try:
                with suppress(Exception):  # a script never fails of being looked at
                    self._note(getattr(func, "__name__", ""), tensors_of((args, given)), made)
            finally:
                _looking.discard(here)
        return made

    def _note(self, name: str, leaves: list[torch.Tensor], made: Any) -> None:
        marks = [(x.dim(), mark) for x in leaves if (mark := self.marks.of(x)) is not None]
        if not marks:
            return
        most = max(dims for dims, _ in marks)  # a mean of all of them has fewer
        of = {mark.at: mark for dims, mark in marks if dims == most}
        larger = any(x.dim() > most for x in leaves) and name not in _LOOKS_UP
        if len(of) > 1 or larger:
            return
        ((_, mark),) = of.items()
        if self._ended:
            self._used = mark, places_of(frames_of_script())
        for x in () if is_in_place(name) else tensors_of(made):
            if self.marks.of(x) is None and not isinstance(x, torch.nn.Parameter):
                self.marks.put(x, mark.share, mark.reading, mark.at, made=True)


def _only(marks: dict[int, Mark]) -> Mark | None:
    return next(iter(marks.values())) if len(marks) == 1 else None
