"""What tensors are known to be made of, while they are there."""

from __future__ import annotations

from abc import ABC
from weakref import ref

import torch

from dream.adapters.pytorch.loss.calls import TrainingCall, call_at
from dream.adapters.pytorch.loss.coupling.lowest_mode import LowestMode
from dream.adapters.pytorch.loss.coupling.origins import (
    OfRows,
    Origin,
    UnknownOrder,
    node_of,
    place_of,
)
from dream.adapters.pytorch.randomness.rows import Place, Rows

FEWEST = 2
"""Rows that a share must have."""


class KnownOrigins(LowestMode, ABC):
    """A mode that knows origins of tensors, and of what calls of a module give."""

    def __init__(self) -> None:
        super().__init__()
        self._origins: dict[int, tuple[ref[torch.Tensor], Origin]] = {}
        self._called: list[tuple[TrainingCall, OfRows]] = []

    def forget(self) -> None:
        self._origins.clear()
        self._called.clear()

    def note_call(self, call: TrainingCall, of: OfRows | None) -> None:
        """A module was called on such rows, turned or in another order than the batch's; None of
        what was not followed to it."""
        if of is None:
            of = OfRows(0, Place(0), by=UnknownOrder())
        if of.place.dim == 1 or of.by is not None:
            self._called.append((call, of))

    def is_rows(self, x: torch.Tensor) -> bool:
        """Whether this is, be it seen anew, what was made of a batch row by row."""
        held = ((each(), origin) for each, origin in self._origins.values())
        return any(
            isinstance(origin, OfRows) and a is not None and a.shape == x.shape
            and a.data_ptr() == x.data_ptr()
            for a, origin in held
        )  # fmt: skip

    def _put(self, x: torch.Tensor, origin: Origin) -> None:
        key = id(x)
        self._origins[key] = ref(x, lambda _: self._origins.pop(key, None)), origin

    def _origin(self, x: object) -> Origin | None:
        found = self._origins.get(id(x))
        if found is not None and found[0]() is x:
            return found[1]
        if not isinstance(x, torch.Tensor) or (node := node_of(x)) is None:
            return None
        call = call_at(node)
        if call is None or call.share is None or call.share.count < FEWEST:
            return None
        n = call.share.count
        given = next((of for each, of in self._called if each is call), None)
        turned = given is not None and given.place.dim == 1 and x.shape[1:2] == (n,)
        place = Place(1) if turned else place_of(x, Rows.of(call.share))
        by = given.by if given is not None else None
        return None if place is None else OfRows(n, place, by=by)
