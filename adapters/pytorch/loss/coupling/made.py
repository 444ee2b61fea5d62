"""What a loop makes of batches before it gives them to a model: it is of these batches, be it given
long after."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, final

import torch
from torch.overrides import TorchFunctionMode

from dream.adapters.pytorch import private
from dream.adapters.pytorch.loss.coupling.origins import is_in_place, tensors_of
from dream.adapters.pytorch.randomness.current import current
from dream.data.partition import Share

if TYPE_CHECKING:
    from dream.adapters.pytorch.data.shares import Mark

_LOOKS_UP = {"__getitem__", "embedding", "index_select"}
"""What has more dims than the numbers that are looked up."""
_IDLE = 16
"""Calls on batches as loaders gave them, after which a loop over kept ones is taken for one that
changes none."""
_MISSED = 2
"""How often it is looked again for a change that begins later: a loop may call a model on what is
no batch's for ever."""
_looking: set[int] = set()
"""Threads in which one of these looks: what that calls is nobody's."""


@final
class MadeOfBatches(TorchFunctionMode):
    """Follows what is made of a loader's first batch until a model is called to train, and of all
    of them where none is, as in a loop that keeps its batches in a list; of these then on.

    Whose something is goes by what every rank has alike: what it was made of, and how many dims
    that has. Never by sizes, which are a rank's own.

    mark_of: the mark of a tensor, if it has one. mark: has another one be of the same batch. held:
    the share of the kept batch that the loop has last used.
    """

    def __init__(
        self,
        mark_of: Callable[[torch.Tensor], Mark | None],
        mark: Callable[[torch.Tensor, Mark], None],
    ) -> None:
        super().__init__()
        self._mark_of, self._mark = mark_of, mark
        self.entered, self._trained, self._ended = False, True, False
        self._idle, self._missed, self._opened = 0, 0, False
        self.held: Share | None = None

    def open(self) -> None:
        """The block begins."""
        self._opened = True

    def close(self) -> None:
        """The block ends: what loaders hand out after it nobody would end to follow."""
        self._opened = False
        self.leave()

    def handed(self, *, first: bool) -> None:
        """A loader hands out a batch. first: of its pass."""
        if first:
            self._trained, self._ended, self.held = False, False, None
            self._idle = self._missed = 0
        if not self._trained:
            self._enter()

    def called(self, *, reads: bool, made: bool) -> None:
        """A model is called to train. reads: while a loader is read. made: on what a loop has made
        of a batch; else on the batch itself."""
        self._idle = 0 if made else self._idle + 1
        if reads or self._idle > _IDLE or private.compiles():
            self.leave()

    def used(self) -> None:
        """A loop draws beside the kept batch, and may again."""
        if self.held is not None:
            self._idle = 0

    def missed(self) -> bool:
        """A model is called on what is of no batch, as far as is known. Returns whether a loop may
        have begun to change what it kept, while nobody looked."""
        if self._idle <= _IDLE or self._missed == _MISSED:
            return False
        self._trained, self._idle, self._missed = False, 0, self._missed + 1
        self._enter()
        return True

    def _enter(self) -> None:
        if self._opened and not (self.entered or current.is_apart() or private.compiles()):
            self.entered = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def ended(self) -> None:
        """A pass is over."""
        self._ended = True

    def leave(self) -> None:
        """Be out of the way. Where another mode lies above this one, it is so later."""
        self._trained, self.held = True, None
        if self.entered and private.innermost_mode() is self:
            self.entered = False
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        if self._trained or torch.compiler.is_compiling():
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
        marks = [(x.dim(), mark) for x in leaves if (mark := self._mark_of(x)) is not None]
        if not marks:
            return
        most = max(dims for dims, _ in marks)  # a mean of all of them has fewer
        of = {mark.at: mark for dims, mark in marks if dims == most}
        larger = any(x.dim() > most for x in leaves) and name not in _LOOKS_UP
        if len(of) > 1 or larger:
            return
        ((_, mark),) = of.items()
        if self._ended:
            self.held = mark.share
        for x in () if is_in_place(name) else tensors_of(made):
            if self._mark_of(x) is None and not isinstance(x, torch.nn.Parameter):
                self._mark(x, mark)
