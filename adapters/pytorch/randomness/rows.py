"""Which rows of a global batch are a rank's, and where a drawn tensor has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch

from dream.adapters.pytorch import private
from dream.data.partition import Share


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor has the batch's rows. dim: which; each: how many rows of it are a sample's.
    copies: those of a sample lie apart, as where two views of a batch are joined."""

    dim: int
    each: int = 1
    copies: bool = False


@final
@dataclass(frozen=True, slots=True)
class Rows:
    """A rank's rows of a global batch: `cut` of it are `count` of `total`.

    runs: batches, or views of one, that were joined one after another, if these are such. flat:
    only what has no more rows than they do has them. joined: what a call has of its batch's rows
    that were joined, those that it was given first.
    """

    cut: slice
    count: int
    total: int
    runs: tuple[Rows, ...] = ()
    flat: bool = False
    joined: list[Rows] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, share: Share) -> Rows:
        """Those of a share, or of one of its micro-batches."""
        return cls(share.cut, share.count, share.total)

    @classmethod
    def join(cls, runs: Sequence[Rows], *, flat: bool = False) -> Rows:
        """Those of several, one after another."""
        parts = tuple(replace(x, joined=[]) for run in runs for x in (run.runs or (run,)))
        count, total = sum(x.count for x in parts), sum(x.total for x in parts)
        return cls(slice(0), count, total, parts, flat)

    def find(self, shape: Sequence[int]) -> Place | None:
        """Find the rows in a shape: a dim of just as many, or dim 0 of several for each."""
        n = self.count
        if len(shape) < 2 and (n == 1 or not shape or shape[0] != n):
            return None  # torch.rand(1) is nobody's row
        if shape[0] == n:
            return Place(0)
        several = shape[0] % n == 0
        square = len(shape) == 3 and shape[1] == shape[2]  # attention's weights
        if len(shape) > 2 and shape[1] == n and not (several and square):
            return Place(1)
        return Place(0, shape[0] // n) if several and (n > 1 or square) else None

    def holds(self, shape: Sequence[int], place: Place) -> bool:
        """Whether a shape has the rows at this place."""
        return len(shape) > place.dim and shape[place.dim] == place.each * self.count

    def whole(self, shape: Sequence[int], place: Place) -> list[int]:
        """Return the shape that the global batch has."""
        sizes = list(shape)
        sizes[place.dim] = place.each * self.total
        return sizes

    def take(self, whole: torch.Tensor, place: Place) -> torch.Tensor:
        """Return this rank's rows of a tensor of the global batch, as a tensor of their own."""
        if place.copies:
            copies = whole.split(self.total)
            return torch.cat([self.take(each, Place(0)) for each in copies])
        if self.runs:
            parts = zip(self.runs, self._split(whole, place), strict=True)
            return torch.cat([run.take(part, place) for run, part in parts], place.dim)
        if place.dim == 1:
            return whole[:, self.cut].contiguous()
        rows = self._grouped(whole, place)[self.cut]
        return rows.reshape(place.each * self.count, *whole.shape[1:])

    def put(self, whole: torch.Tensor, rows: torch.Tensor, place: Place) -> None:
        """Write this rank's rows into a tensor of the global batch."""
        if place.copies:
            copies = zip(whole.split(self.total), rows.split(self.count), strict=True)
            for each, mine in copies if self.count else ():
                self.put(each, mine, Place(0))
        elif self.runs:
            own = rows.split([place.each * run.count for run in self.runs], place.dim)
            for run, part, mine in zip(self.runs, self._split(whole, place), own, strict=True):
                run.put(part, mine, place)
        elif place.dim == 1:
            whole[:, self.cut] = rows
        else:
            part = self._grouped(whole, place)[self.cut]
            part.copy_(rows.reshape(part.shape))

    def index(self, place: Place, device: torch.device) -> torch.Tensor:
        """Return the numbers of this rank's rows along the place's dim."""
        numbers = torch.arange(place.each * self.total if place.dim == 0 else self.total)
        return self.take(numbers, Place(0, place.each, place.copies)).to(device)

    def _split(self, whole: torch.Tensor, place: Place) -> Sequence[torch.Tensor]:
        parts: Sequence[torch.Tensor] = whole.split(
            [place.each * run.total for run in self.runs], place.dim
        )
        return parts

    def _grouped(self, whole: torch.Tensor, place: Place) -> torch.Tensor:
        """Dim 0 as samples and rows of each, in the order in which they lie."""
        return whole if place.each == 1 else whole.view(self.total, place.each, *whole.shape[1:])


_NODES = 64
"""Operations that are looked at."""


def lie_apart(x: object, count: int, each: int) -> bool | None:
    """Whether a tensor's `each` rows of a sample lie apart, as heads before samples, or steps of
    time: by what its dim 0 was before it was made one. None where sizes leave a doubt."""
    waiting, seen = [getattr(x, "grad_fn", None)], set[Any]()
    while waiting and len(seen) < _NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        sizes = tuple(private.saved(node, "self_sym_sizes") or ()) if "View" in node.name() else ()
        if sizes[:2] in ((count, each), (each, count)):
            return None if each == count else sizes[0] == each
        waiting += [parent for parent, _ in node.next_functions]
    return False


def empty_for(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return an empty tensor of a shape whose dims lie in memory as those of `like` do."""
    order = _order_of(like)
    if order == [*range(like.dim())]:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    made = torch.empty([shape[dim] for dim in order], dtype=like.dtype, device=like.device)
    return made.permute([order.index(dim) for dim in range(like.dim())])


def spread_for(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The same, with gaps in its memory where a tensor of the shape, that `like` has a part of, has
    some: as one token of each sample has. A GPU's kernel of dropout goes through such in another
    order."""
    within, sizes = 1, like.shape
    for dim in reversed(_order_of(like)):
        if like.stride(dim) != within and (sizes[dim] > 1 or shape[dim] != sizes[dim]):
            return torch.empty([*shape, 2], dtype=like.dtype, device=like.device)[..., 0]
        within *= max(sizes[dim], 1)
    return empty_for(like, shape)


def _order_of(x: torch.Tensor) -> list[int]:
    """Sort dims by how far apart in memory what lies along them is. One of a single row lies inside
    that of the same stride: its batch may be transposed none the less."""
    strides, sizes = x.stride(), x.shape
    if 0 in strides:  # expanded, which torch's own stay where they are for
        strides = torch.empty_like(x, device="meta").stride()
    return sorted(range(x.dim()), key=lambda dim: (-strides[dim], sizes[dim] == 1, dim))
