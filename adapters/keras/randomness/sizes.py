"""Draws of a size that the script has written down, beside those for a batch's rows.

Where a size is a plain number, nothing tells one from the other in the step itself: 16 rows are two
for each of a share's 8 samples, or noise that every part draws alike. Steps that are tried on
batches of several sizes tell: what has one shape in all of them is alike on every part.
"""

from __future__ import annotations

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
        self._written: frozenset[Shape] = frozenset()
        self._rows: frozenset[tuple[float, Shape]] = frozenset()

    def begin(self, rows: int) -> None:
        """A step is tried on so many rows."""
        self._tried[rows] = []

    def note(self, rows: int, dims: Sequence[Any]) -> None:
        """It draws a tensor, or normalises one."""
        if all(isinstance(size, int) for size in dims):
            self._tried[rows].append(tuple(dims))

    def drew(self) -> bool:
        """Whether a step that was tried drew, or normalised, anything."""
        return any(self._tried.values())

    def settle(self) -> bool:
        """Find out what is alike, in training or out of it; whether some tensor's rows are neither
        that nor the batch's."""
        tried = [set(shapes) for shapes in self._tried.values()]
        self._written |= set.intersection(*tried) if len(tried) > 1 else set()
        self._rows |= frozenset(
            (shape[0] / rows, shape[1:])
            for rows, shapes in self._tried.items()
            for shape in shapes
            if shape and shape not in self._written
        )
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

    def may_be_rows(self, dims: Sequence[Any], count: int) -> bool:
        """Whether one of so many samples' rows may have this shape too."""
        return (dims[0] / count, tuple(dims[1:])) in self._rows


_sizes: ContextVar[DrawnSizes | None] = ContextVar("dream.keras_sizes", default=None)
current = _sizes.get


def known(sizes: DrawnSizes | None) -> AbstractContextManager[None]:
    """Inside, a step of a model is taken whose draws are known."""
    return value_set(_sizes, sizes)
