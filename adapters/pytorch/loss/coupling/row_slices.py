"""Rows of a batch that the loop takes by their number: a rank takes them of its share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

import torch

from dream._log import Once
from dream.adapters.pytorch.loss.coupling.halves import NEIGHBOURS
from dream.adapters.pytorch.loss.coupling.origins import ChosenRows, MixedRows, OfRows, Origin
from dream.adapters.pytorch.loss.samples.row_dims import takes_one
from dream.adapters.pytorch.randomness import own_places
from dream.adapters.pytorch.randomness.rows import Place, Rows
from dream.adapters.pytorch.randomness.sites import states, worked_out_of_a_length

CUTS = {"__getitem__", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "vsplit"}
"""What may take some of the rows in a row."""
CUT = "dream.cut"
"""A key of a graph node's metadata: the function that cut off rows there which are not those of one
device."""
_BY_PARTS = {"chunk", "tensor_split", "vsplit"}
_CUT = (
    "the loop takes some of its batch's rows by their number (%s), and a rank takes them of its "
    "own share. Where that number is a fixed one, or drawn or worked out of how many rows there "
    "are, or a share does not divide as the batch does, "
    "they are other rows than on one device, and another model is trained. Have loaders give the "
    "parts, or choose rows by what is in the batch, as by a column of their own"
)


@final
class RowSlices:
    """Tells once of such rows that are trained on."""

    def __init__(self) -> None:
        self._say = Once()

    def tell_at(self, node: Any, *, singly: bool) -> None:
        """Tell of what a node of a loss has cut off. singly: rows are taken one by one, each for a
        loss of its own."""
        if not (singly and takes_one(node, node.name()) is not None):
            self.tell(node.metadata.get(CUT, ""))

    def tell_written(self, name: str, args: Any, of: Origin | None, rows: Rows) -> None:
        """Tell of rows that a function in place writes to: by their number, or where they lie in
        those that were cut off. of: the origin of what it writes to."""
        with suppress(Exception):  # a script never fails of being looked at
            x = args[0]
            if isinstance(of, ChosenRows) and x.untyped_storage().nbytes() > x.nbytes:
                self.tell(of.cut)
            elif name == "__setitem__" and isinstance(of, OfRows):
                if type(args[1]) is int and not of.place.dim and states(abs(args[1])):
                    self.tell("a number")  # that is written there: a loop over rows has others
                given, some = "__getitem__", x.detach()[args[1]]
                by, size = _slice_along(args, of.place.dim), x.shape[of.place.dim]
                if by is not None and not some.numel() and _leaves_some(by, size, rows, of):
                    self.tell(given)
                for each in parts_of_rows(given, args, x, of, [some], rows) or ():
                    self.tell(getattr(each, "cut", ""))

    def tell(self, name: str) -> None:
        """name: of the function that has cut them off; nothing where none has."""
        if name:
            self._say(_CUT, "a slice" if name == "__getitem__" else name)


def parts_of_rows(
    name: str, args: Any, x: torch.Tensor, of: OfRows, outs: Sequence[torch.Tensor], rows: Rows
) -> list[Origin] | None:
    """What was taken of a tensor's rows by their number: all of some of several kinds, as of two
    views, or parts. None where none were; nothing of what are samples each. rows: the share's."""
    dim = of.place.dim
    if name == "__getitem__" and not dim and len(x) == of.n and (own := _own_places(args[1])):
        return [ChosenRows(len(out), cut=own) for out in outs]
    if _one_each(name, args, of.n):
        return []
    by = _slice_along(args, dim) if name == "__getitem__" else slice(None)
    if by is None:
        return None
    if name != "__getitem__" and any(out.dim() != x.dim() for out in outs):
        return None
    sizes = [out.shape[dim] for out in outs]
    if set(sizes) == {x.shape[dim]}:
        some = _leaves_some(by, x.shape[dim], rows, of)
        return [ChosenRows(x.shape[dim], cut=name)] if some else None
    if not all(sizes):
        return None
    if all(size % of.n == 0 for size in sizes) and by.step in (None, 1):
        return [replace(of, place=replace(of.place, each=size // of.n)) for size in sizes]
    turns = by.step == of.place.each > 1 and by.stop is None and 0 <= (by.start or 0) < by.step
    if turns and sizes == [of.n] and not of.place.copies:
        return [replace(of, place=Place(dim))]  # one row of each sample
    even = rows.count * rows.cut.step == rows.total and by.step in (None, 1)
    parts = args[1] if name in _BY_PARTS and isinstance(args[1], int) else 2
    even &= all(size * parts == x.shape[dim] for size in sizes)
    same = even and (name in _BY_PARTS or worked_out_of_a_length())
    return [ChosenRows(size, cut="" if same else name) for size in sizes]


def _one_each(name: str, args: Any, count: int) -> bool:
    """Whether a split is by a list of sizes, as many as there are samples: the lengths of these."""
    sizes = args[1] if name.startswith("split") and len(args) > 1 else None
    return isinstance(sizes, (list, tuple)) and len(sizes) == count and not worked_out_of_a_length()


def chosen_in(name: str, x: torch.Tensor, of: ChosenRows, rows: Rows | None) -> Origin:
    """What was made of chosen rows, by sizes alone: there is no half of them to try. They may come
    back to their places."""
    back = rows is not None and x.shape[:1] == (rows.count,) != (of.count,)
    if back and name not in NEIGHBOURS:
        return OfRows(x.shape[0], Place(0))
    kept = x.dim() and x.shape[0] and x.shape[0] % of.count == 0 and not back
    return replace(of, count=x.shape[0]) if kept else MixedRows(name, x.detach())


def _own_places(index: Any) -> str:
    """What has made the numbers of rows that `x[...]` picks, where they are of a share's."""
    return own_places.made_by(index[0] if isinstance(index, tuple) and index else index)


def _slice_along(args: Any, dim: int) -> slice | None:
    """What `x[...]` takes along a dim, where that is a slice of it."""
    given = args[1] if isinstance(args[1], tuple) else (args[1],)
    if len(given) <= dim or not all(isinstance(each, slice) for each in given[: dim + 1]):
        return None
    by: slice = given[dim]
    return by


def _leaves_some(by: slice, size: int, rows: Rows, of: OfRows) -> bool:
    """Whether a slice that takes all or none of the rows of a share, `size`, takes some of the
    batch's: its number is more than those of a share, or is as many, and stands in the script."""
    whole = rows.total * of.place.each
    if len(range(*by.indices(whole))) in (0, whole) or worked_out_of_a_length():
        return False
    return size not in (by.start, by.stop) or states(size)
