"""Batches that a thread of the script's own reads ahead: which share they are travels with what is
made of them, in that thread and in the one that trains on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final
from weakref import ref

import torch

from dream._log import Once, logger
from dream.adapters.pytorch import private
from dream.adapters.pytorch.loss.coupling.halves import not_tried, origin_by_half, try_halves
from dream.adapters.pytorch.loss.coupling.kept_rows import Alive
from dream.adapters.pytorch.loss.coupling.lowest_mode import LowestMode
from dream.adapters.pytorch.loss.coupling.origins import (
    MixedRows,
    OfRows,
    place_of,
    tensors_of,
)
from dream.adapters.pytorch.randomness.current import State, current, same, state
from dream.adapters.pytorch.randomness.rows import Rows

_LOOKS, _FEWEST = 64, 4
"""Calls that are tried on half of a batch's rows, and the fewest rows: half of them must be no
single one, with which any others could be combined."""
_TAKES = ("__getitem__", "index_select")
_UNKNOWN = (
    "a thread of the script's own reads a loader ahead, and its batches are made anew where dream "
    "does not see it (by NumPy, or beside torch.compile): they are taken to be trained on in the "
    "order in which they were read, one at a call; any other trains another model. Change batches "
    "by torch in that thread, or in collate_fn; DataLoader(num_workers=...) reads ahead too"
)
_MIXED = (
    "a batch that a thread of the script's own has read ahead is combined with something made of "
    "all of its rows, by %s, where a rank has its share of them alone: it is another number than "
    "the whole batch's. Mix rows in the collate function, which sees the global batch, or compute "
    "such numbers from the whole data"
)
Made = Callable[[Any, Any, Any], tuple[list[torch.Tensor], int] | None]
"""Told of (a function, what it was given, what it made). The tensors among what it was given that
have a batch's rows, and how many; None where there is none."""


@final
class Following(LowestMode):
    """Sees what is made of tensors in one thread, which may live on after the block.

    by: what follows the batches that are read there now."""

    def __init__(self, by: Threads) -> None:
        super().__init__()
        self.by = ref(by)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by = self.by()
        return func(*args, **(kwargs or {})) if by is None else by.call(func, args, kwargs or {})


class _Here(threading.local):
    mode: Following | None = None


_here = _Here()


@final
class MixedRowsOfThreads:
    """Says once where rows are mixed before they are trained on: whether a function mixes them is
    tried on half of them, in its first calls."""

    def __init__(self) -> None:
        self._left = _LOOKS
        self._mixed = Alive()

    def before(self) -> State | None:
        """The generators' states; None where nothing is looked at any more."""
        return state() if self._left else None

    def look(self, func: Any, given: Any, made: Any, of: Sequence[torch.Tensor], n: int) -> None:
        """of: tensors that have the batch's n rows, among what was given."""
        name = getattr(func, "__name__", "")
        if n < _FEWEST or any(x.requires_grad for x in tensors_of((given, made))):
            return
        self._left -= 1
        others = [x for x in tensors_of(given) if all(x is not each for each in of)]
        orders = name in _TAKES and any(x.dtype == torch.int64 and len(x) == n for x in others)
        if orders or any(x in self._mixed for x in others):
            self._tell(name)
            return
        rows = Rows(slice(0, n), n, n)
        origins = {id(x): OfRows(n, place) for x in of if (place := place_of(x, rows))}
        if not_tried(name, given[0], n):
            return
        half = try_halves(func, given[0], given[1], {**origins}) or []
        for at, (x, own) in enumerate(zip(tensors_of(made), half, strict=False)):
            if isinstance(origin_by_half(name, x, own, n, at), MixedRows):
                self._mixed.add(x)
                if place_of(x, rows) is not None:
                    self._tell(name)

    def _tell(self, name: str) -> None:
        self._left = 0
        logger.info(_MIXED, name)


@final
class Threads:
    """Follows what threads make of batches. inside: whether the block is open."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self._mixed = MixedRowsOfThreads()
        self.inside, self._say = False, Once()

    def open(self) -> None:
        """The block is entered, in this thread."""
        self.inside, current.owner = True, threading.get_ident()

    def follow(self) -> bool:
        """From now on in this thread. Whether that begins now, and what was made before is not
        known."""
        mode = _here.mode
        if mode is not None and mode.by() is self:
            return False
        current.thread.apart = current.is_apart()
        if not current.thread.apart and (not self.inside or private.compiles()):
            return False
        if mode is None:
            _here.mode = mode = Following(self)
            mode.put()
        mode.by = ref(self)  # in place of a block's before: a thread may outlive many
        return True

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and follow what it makes of a batch."""
        before = self._mixed.before()
        made = func(*args, **kwargs)
        given = args, kwargs
        found = None if torch.compiler.is_compiling() else self._made(func, given, made)
        if found is not None and before is not None and same(before, state()):
            with suppress(Exception):  # a script never fails of being looked at
                self._mixed.look(func, given, made, *found)
        return made

    def tell_unknown(self) -> None:
        """Say once that a batch is none that is known."""
        self._say(_UNKNOWN)

    def close(self) -> None:
        """The block ends."""
        self.inside = False
        if _here.mode is not None:
            _here.mode.take()
            _here.mode = _here.mode if _here.mode.entered else None
