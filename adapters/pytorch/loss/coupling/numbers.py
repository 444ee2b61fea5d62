"""Numbers that rows are combined with: those that were worked out of a share are its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import isfinite
from typing import Any, final

import torch

from dream.adapters.pytorch.loss.coupling.origins import (
    READS,
    MixedRows,
    OfRows,
    Origin,
    leaves_of,
)
from dream.adapters.pytorch.loss.private import mapped

_ADDS = {"add", "radd", "iadd", "sub", "rsub", "isub", "maximum", "minimum"}
_WORKS = _ADDS | {"div", "truediv", "rtruediv", "itruediv", "divide", "true_divide", "mul", "rmul",
                  "imul", "multiply", "pow"}  # fmt: skip
"""What numbers are no sizes in."""


@final
class NumbersMet:
    """Numbers that the rows of a loop's batch have met."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, float], Any] = {}
        self._read: set[float] = set()

    def forget(self) -> None:
        """The next batch has others."""
        self._known.clear()
        self._read.clear()

    def note_read(self, name: str, made: Any, origins: dict[int, Origin]) -> None:
        """A script may have read something. origins: of what it read."""
        if name in READS and isinstance(next(iter(origins.values())), MixedRows):
            self._read.add(made)

    def new(
        self, name: str, tree: Any, leaves: Sequence[Any], origin: Callable[[Any], Origin | None]
    ) -> Iterator[MixedRows]:
        """Yield those that a function is given for the first time; and all rows, where each meets
        them in a function that is mapped over them."""
        origins = {id(x): each for x in leaves if (each := origin(x)) is not None}
        rows = [x for x in leaves if isinstance(origins.get(id(x)), OfRows)]
        if any(isinstance(origin(mapped(x)), OfRows) for x in leaves if id(x) not in origins):
            yield from (MixedRows("vmap", x.detach()) for x in rows if mapped(x) is None)
        for key, number, of in _met(name, tree, leaves, origins, self._read):
            if key not in self._known:
                self._known[key] = of  # another would have its id, on some ranks, once it is gone
                yield number


def _numbers_in(tree: Any, read: Collection[float] = ()) -> Iterator[float]:
    """Yield those of Python's that are no counts, nor one by a count. read: those that are."""
    for each in leaves_of(tree):
        if type(each) in (int, float) and each in read:
            yield float(each)
        if type(each) is not float or not isfinite(each) or each.is_integer():
            continue
        if not (1.0 / each).is_integer():
            yield each


def _met(
    name: str, tree: Any, leaves: Sequence[Any], origins: dict[int, Origin],
    read: Collection[float],
) -> Iterator[tuple[tuple[str, float], MixedRows, Any]]:  # fmt: skip
    """Yield the numbers that rows are combined with, each with a key, and with what the key is of
    as long as that lives: such as were worked out of a batch, be it by NumPy, differ over the
    ranks. Those of rows that are trained on are looked at in a loss's graph, which keeps none that
    is added. read: what the script has read of all rows, be it a count."""
    rows = any(isinstance(each, OfRows) for each in origins.values())
    if any(x.requires_grad for x in leaves) and not (rows and name.strip("_") in _ADDS):
        return
    for each in _numbers_in(tree, read if name.strip("_") in _WORKS else ()):
        number = torch.tensor(each, dtype=torch.float64)
        yield (name, each), MixedRows(f"a number in {name}", number), each
    for x in leaves if rows else ():
        if not (x.dim() or x.requires_grad or id(x) in origins) and x.is_floating_point():
            yield (name, float(id(x))), MixedRows(f"a number in {name}", x.detach().clone()), x
