"""Draws of a size that the script has written down, beside those for a batch's rows.

Where a size is a plain number, nothing tells one from the other in the step itself: 16 rows are two
for each of a share's 8 samples, or noise that every part draws alike. Steps that are tried on
batches of several sizes tell: what has one shape in all of them is alike on every part. Where a
step draws in the order in which it was tried, the draw's place tells; else its shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, final

from dream._patches import value_set

Shape = tuple[int, ...]


@final
class DrawnSizes:
    """What one model's steps draw, and normalise, when they are tried."""

    def __init__(self) -> None:
        self._tried: dict[int, list[Shape]] = {}
        self._drawn: dict[int, list[Shape]] = {}
        self._in_order: list[tuple[Shape, bool]] = []
        self.written_by_place: Counter[Shape] = Counter()
        self._written: frozenset[Shape] = frozenset()
        self._rows: frozenset[tuple[float, Shape]] = frozenset()

    def begin(self, rows: int) -> None:
        """A step is tried on so many rows."""
        self._tried[rows], self._drawn[rows] = [], []

    def note_draw(self, rows: int, dims: Sequence[Any]) -> None:
        """It draws a tensor. dims: numbers, or tensors of what is tried eagerly."""
        self.note(rows, dims)
        self._drawn[rows].append(tuple(int(size) for size in dims))

    def note(self, rows: int, dims: Sequence[Any]) -> None:
        """It draws a tensor, or normalises one."""
        if all(isinstance(size, int) for size in dims):
            self._tried[rows].append(tuple(dims))

    def drew(self) -> bool:
        """Whether a step that was tried drew, or normalised, anything."""
        return any(self._tried.values())

    def settle(self, *, training: bool) -> bool:
        """Find out what is alike, in training or out of it; whether some tensor's rows are neither
        that nor the batch's. training: whether steps of training were tried last, whose order of
        draws is kept."""
        tried = [set(shapes) for shapes in self._tried.values()]
        self._written |= set.intersection(*tried) if len(tried) > 1 else set()
        self._rows |= frozenset(
            (shape[0] / rows, shape[1:])
            for rows, shapes in self._tried.items()
            for shape in shapes
            if shape and shape not in self._written
        )
        draws = list(self._drawn.values())
        if training and len(draws) > 1 and len({len(shapes) for shapes in draws}) == 1:
            self._in_order = [
                (shapes[0], len({shape[0] for shape in shapes}) == 1)
                for shapes in zip(*draws, strict=True)
            ]
            self.written_by_place = Counter(s for s, written in self._in_order if written)
        in_order = [[s[0] for s in shapes if s] for shapes in self._tried.values()]
        if len({len(lengths) for lengths in in_order}) > 1:
            return False
        return not all(self._is_told(lengths) for lengths in zip(*in_order, strict=True))

    def _is_told(self, lengths: Sequence[int]) -> bool:
        each = {length / rows for length, rows in zip(lengths, self._tried, strict=True)}
        return len(set(lengths)) == 1 or len(each) == 1

    def written(self, dims: Sequence[Any]) -> bool:
        """Whether a tensor of this shape has a size that the script has written."""
        return tuple(dims) in self._written

    def written_at(self, place: int, dims: Sequence[Any]) -> bool | None:
        """Whether what is drawn at this place of a step has a size that the script has written;
        None where it was not tried so."""
        if place >= len(self._in_order):
            return None
        (length, *inner), written = self._in_order[place]
        alike = inner == list(dims[1:]) and (not written or length == dims[0])
        return written if alike else None

    def may_be_rows(self, dims: Sequence[Any], count: int) -> bool:
        """Whether one of so many samples' rows may have this shape too."""
        return (dims[0] / count, tuple(dims[1:])) in self._rows


@final
class StepDraws:
    """The draws of a step that is being taken. sizes: those that were tried. ordered: whether it
    is such a step as was tried last."""

    def __init__(self, sizes: DrawnSizes, *, ordered: bool) -> None:
        self.sizes = sizes
        self._ordered = ordered
        self._place = -1
        self._written: Counter[Shape] = Counter()

    def go_on(self) -> None:
        """Count a draw that is about to be made."""
        self._place += 1

    def written(self, dims: Sequence[Any]) -> bool | None:
        """Whether the draw that was counted last has a size that the script has written; None where
        its place does not tell. In a step that draws otherwise from some place on, as by a choice
        of layers, those of a shape that all came by before have been."""
        if not (self._ordered and all(isinstance(size, int) for size in dims)):
            return None
        told, shape = self.sizes.written_at(self._place, dims), tuple(dims)
        self._written[shape] += bool(told)
        came_by = self._written[shape] >= self.sizes.written_by_place[shape] > 0
        return False if told is None and came_by else told


_draws: ContextVar[StepDraws | None] = ContextVar("dream.keras_sizes", default=None)
current = _draws.get


def known(sizes: DrawnSizes | None, *, ordered: bool = False) -> AbstractContextManager[None]:
    """Inside, a step of a model is taken whose draws are known. ordered: as it was tried last."""
    return value_set(_draws, None if sizes is None else StepDraws(sizes, ordered=ordered))
