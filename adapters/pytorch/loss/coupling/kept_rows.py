"""Rows of a batch that outlive it: in a tensor that the loop writes them into, a rank has its own
alone; and those of earlier batches, where they are joined."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, final
from weakref import ref

import torch

from dream._log import logger
from dream.adapters.pytorch.loss.coupling.origins import is_in_place, tensors_of
from dream.adapters.pytorch.randomness.joins import joins

_LARGE = 1 << 22
"""Elements of a batch whose rows are not looked into."""
_JOINS = {"stack", "cat", "concat", "concatenate", "vstack", "hstack"}
_LOOKS_UP = {"__getitem__", "index_select"}
_CHOOSES = {"lt", "le", "gt", "ge", "where"}
_WRITES = {"__setitem__", "index_copy_", "index_put_", "index_add_", "index_fill_", "scatter_",
           "scatter_add_", "scatter_reduce_", "masked_scatter_"}  # fmt: skip
"""What writes some rows of a tensor."""
_WRITTEN = (
    "the loop writes what it made of a batch's rows into %s (%s), where each rank then has that of "
    "its own rows alone: what is read there later is not what one device has. Write those of all "
    "ranks, by strategy.communicator.all_gather, and their places too"
)


@final
class Alive:
    """Tensors that are known as long as they live."""

    def __init__(self) -> None:
        self._held: dict[int, ref[torch.Tensor]] = {}

    def add(self, x: torch.Tensor) -> None:
        key = id(x)
        self._held[key] = ref(x, lambda _: self._held.pop(key, None))

    def take(self, other: Alive) -> None:
        """Have those of another, which then has none."""
        for held in [*other._held.values()]:
            if (x := held()) is not None:
                self.add(x)
        other.clear()

    def clear(self) -> None:
        self._held.clear()

    def __contains__(self, x: torch.Tensor) -> bool:
        held = self._held.get(id(x))
        return held is not None and held() is x


@final
class HandedRows:
    """What is in the rows of batches, as loaders hand them out."""

    def __init__(self) -> None:
        self._earlier: set[int] = set()
        self._now: set[int] = set()
        self._batches: set[tuple[int, ...]] = set()

    def begin(self, tensors: list[torch.Tensor]) -> None:
        self._earlier |= self._now
        each = [_contents(x) for x in tensors if x.is_floating_point()]
        self._batches.update(each)
        self._now = {row for rows in each for row in rows}

    def come_again(self, x: torch.Tensor) -> bool:
        """Whether several rows are of earlier batches: not where they are one of those whole, which
        is each rank's share of what one device has."""
        rows = _contents(x)
        again = [row for row in rows if row in self._earlier and row not in self._now]
        return len(again) > 1 and rows not in self._batches


@final
class KeptRows:
    """What is made of the rows of the batch that is trained on, and of those before it."""

    def __init__(self) -> None:
        self._made, self._new, self._earlier = Alive(), Alive(), Alive()
        self._told: set[str] = set()
        self._count = 0
        self.handed = HandedRows()

    def begin(self, tensors: list[torch.Tensor], count: int) -> None:
        """A batch is handed out. count: of this rank's rows."""
        self._count = count
        self.handed.begin(tensors)
        for x in tensors:
            self._made.add(x)

    def end(self) -> None:
        """Another batch is to come."""
        self._earlier.take(self._made)
        self._new.clear()

    def has(self, leaves: list[torch.Tensor]) -> bool:
        return any(x in self._made for x in leaves)

    def knows(self, x: torch.Tensor) -> bool:
        """Whether it is of this batch's rows, or an earlier one's."""
        return x in self._made or x in self._earlier

    def note(
        self, name: str, made: Any, leaves: list[torch.Tensor], *, of_rows: bool
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Note what is new, and what is of this batch's rows. Returns what joins rows that earlier
        batches have left, or is chosen by a number that they have, as a probability that follows
        them, or meets what they have left: each with what is a rank's own in it."""
        joined: list[tuple[torch.Tensor, torch.Tensor]] = []
        outs = tensors_of(made)
        if not outs or any(map(_wraps, (*leaves, *outs))):
            return joined
        with suppress(Exception):  # a script never fails of being looked at
            left = not of_rows and any(map(self._is_left, leaves))
            kept = {x.untyped_storage().data_ptr() for x in leaves if x not in self._new}
            for x in outs:
                if left:
                    self._earlier.add(x)
                if of_rows and not (isinstance(x, torch.nn.Parameter) and is_in_place(name)):
                    self._made.add(x)  # no state, as of a norm, that every row after goes through
                if x.untyped_storage().data_ptr() not in kept:
                    self._new.add(x)
                kept_on = (each for each in leaves if of_rows and self._outlives(each))
                joined += [(x, each) for each in kept_on][:1]
                if left and name in _JOINS and not x.requires_grad:
                    joined.append((x, x))
                if left and name in _LOOKS_UP:
                    joined += [(x, each) for each in leaves if self._outlives(each)][:1]
                if name.strip("_") in _CHOOSES and x.dim() and not of_rows:
                    numbers = (n for n in leaves if not n.dim() and n in self._earlier)
                    joined += [(x, number) for number in numbers][:1]
        return joined

    def _is_left(self, x: torch.Tensor) -> bool:
        """Whether earlier batches have left it, and it is none of them."""
        return x in self._earlier and joins.share_of(x) is None

    def _outlives(self, x: torch.Tensor) -> bool:
        """Whether earlier batches have left it, and it has no row for each of this one's, as a
        codebook that follows them; and it is none of them, as a loop takes them again."""
        several = x in self._earlier and x.dim() and x.is_floating_point() and not x.requires_grad
        return bool(several) and self._count not in x.shape[:2] and joins.share_of(x) is None

    def tell_written(self, name: str, target: torch.Tensor) -> None:
        """Say once where rows are written into what outlives the batch."""
        if not is_in_place(name) or target in self._made or target in self._new:
            return
        trained = isinstance(target, torch.nn.Parameter)
        where = "a parameter" if trained else "a tensor that it keeps"
        if (trained or name in _WRITES) and where not in self._told:
            self._told.add(where)
            logger.info(_WRITTEN, where, name)


def _wraps(x: torch.Tensor) -> bool:
    """Whether it is of others, as a DTensor, and has no memory of its own."""
    return hasattr(type(x), "__tensor_flatten__")


def _contents(x: torch.Tensor) -> tuple[int, ...]:
    """Return a number for what is in each row; none of what is large, or of one number a row."""
    if x.is_nested or x.layout != torch.strided or _wraps(x):
        return ()
    if x.dim() < 2 or not 0 < x.numel() <= _LARGE:
        return ()
    rows = x.detach().to(device="cpu", dtype=torch.float64).flatten(1).numpy()
    return tuple(hash(row.tobytes()) for row in rows)
