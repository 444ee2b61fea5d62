"""Rows of several batches one after another, as of two loaders' whose sizes differ: a model that is
called on them all at once takes each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final
from weakref import ref

import torch

from dream.adapters.pytorch.loss.coupling.origins import (
    ChosenRows,
    JoinedRows,
    OfRows,
    Origin,
    leaves_of,
)
from dream.adapters.pytorch.loss.private import viewed
from dream.adapters.pytorch.randomness.joins import joins
from dream.adapters.pytorch.randomness.rows import Place

_TAKES = {"__getitem__", "index_select"}
_WRITES = {"__setitem__", "copy_"}
_JOINS = {"cat", "concat", "concatenate", "vstack", "row_stack"}


def joined_by(
    name: str,
    args: Any,
    given: Mapping[str, Any],
    origins: Mapping[int, Origin],
    of_batch: Callable[[list[torch.Tensor]], bool],
) -> JoinedRows | None:
    """The rows that a function has put one after another along dim 0; None where it has not, or
    what it made is known otherwise: each sample has as many, or there are others among them.
    of_batch: whether a tensor is made of a batch, be it one with a single row here."""
    dim = args[1] if len(args) > 1 else given.get("dim", given.get("axis", 0))
    if name not in _JOINS or dim != 0 or not args:
        return None
    leaves = leaves_of(args[0])
    pieces = [_parts(x, origins.get(id(x)), of_batch) for x in leaves]
    known = [part for each in pieces for part in each]
    kept = any(_is_kept(x) for x in leaves if id(x) not in origins)
    if not all(pieces) or (len({n for n, _ in known}) == 1 and not kept):
        return None
    return JoinedRows(tuple(known))


def _parts(
    x: torch.Tensor, origin: Origin | None, of_batch: Callable[[list[torch.Tensor]], bool]
) -> Sequence[tuple[int, int]]:
    """Of what one piece is made; of nothing, if that is not known."""
    if isinstance(origin, JoinedRows):
        return origin.parts
    if isinstance(origin, OfRows):
        n, place = origin.n, origin.place
        if place.dim:
            return ()
        return [(n, 1)] * place.each if place.copies else [(n, place.each)]
    if origin is None and of_batch([x]):
        return [(1, len(x))]
    return [(len(x), 1)] if origin is None and _is_kept(x) else ()


def _is_kept(x: torch.Tensor) -> bool:
    """Whether it is of an earlier batch, as a loop over kept ones takes it again."""
    share = joins.share_of(x)
    return share is not None and share.parts > 1 and x.shape[:1] == (share.count,)


def laid_by(
    name: str,
    args: Any,
    given: Mapping[str, Any],
    leaves: Sequence[Any],
    origins: Mapping[int, Origin],
    of_batch: Callable[[list[torch.Tensor]], bool],
) -> Origin | None:
    """How rows lie that a function has joined, or has taken several times; None where neither."""
    joined = joined_by(name, args, given, origins, of_batch)
    return joined or repeated_by(name, leaves, origins.get(id(leaves[0])))


def repeated_by(name: str, leaves: Sequence[Any], of: Origin | None) -> OfRows | None:
    """All rows that a function has taken several times by their numbers, view after view or each
    sample's together; None where it has taken others."""
    if name not in _TAKES or len(leaves) != 2 or not isinstance(of, OfRows):
        return None
    numbers, n = leaves[1], of.n
    if of.place != Place(0) or numbers.dim() != 1 or numbers.dtype != torch.int64:
        return None
    times, rest = divmod(len(numbers), n)
    if rest or times < 2:
        return None
    found, rows = numbers.cpu(), torch.arange(n)
    if torch.equal(found, rows.repeat(times)):
        return OfRows(n, Place(0, times, copies=True))
    return OfRows(n, Place(0, times)) if torch.equal(found, rows.repeat_interleave(times)) else None


@final
class Written:
    """Tensors that rows of a batch are written into, part by part, until they are full."""

    def __init__(self) -> None:
        self._into: dict[int, tuple[ref[torch.Tensor], set[tuple[int, int]]]] = {}

    def forget(self) -> None:
        self._into.clear()

    def by(
        self, name: str, args: Any, leaves: Sequence[Any], origins: Mapping[int, Origin]
    ) -> tuple[torch.Tensor, OfRows] | None:
        """A tensor that has views of a batch, or several rows of each sample, now that this was
        written; None where it is not full."""
        of = origins.get(id(leaves[-1])) if name in _WRITES and len(leaves) == 2 else None
        if not isinstance(of, OfRows) or of.place != Place(0) or id(leaves[0]) in origins:
            return None
        part = leaves[0].detach()[args[1]] if name == "__setitem__" else leaves[0]
        whole: torch.Tensor | None = leaves[0] if name == "__setitem__" else viewed(leaves[0])
        if whole is None or not whole.dim():
            return None
        times, rest = divmod(len(whole), of.n)
        if rest or times < 2 or part.shape != (of.n, *whole.shape[1:]) or not whole.stride(0):
            return None
        begin, step = part.storage_offset() - whole.storage_offset(), whole.stride(0)
        held, parts = self._into.get(id(whole), (None, set[tuple[int, int]]()))
        if held is None or held() is not whole:
            held, parts = ref(whole), set()
            self._into[id(whole)] = held, parts
        parts.add((begin // step, part.stride(0) // step))
        if parts == {(at * of.n, 1) for at in range(times)}:
            return whole, OfRows(of.n, Place(0, times, copies=True))
        together = parts == {(at, times) for at in range(times)}
        return (whole, OfRows(of.n, Place(0, times))) if together else None


def batches_of(
    name: str, x: torch.Tensor, of: JoinedRows, outs: Sequence[torch.Tensor]
) -> list[Origin] | None:
    """What was taken of such rows by their number: a batch again, or some; else rows of one's
    share. None where they were not rows that lie one after another."""
    step = x.stride(0)
    found: list[Origin] = []
    for out in outs:
        if out.dim() != x.dim() or out.stride(0) != step or not len(out):
            return None
        begin = (out.storage_offset() - x.storage_offset()) // step
        parts, at = [], 0
        for n, each in of.parts:
            if begin <= at and at + n * each <= begin + len(out):
                parts.append((n, each))
            at += n * each
        found.append(_of_parts(parts, len(out), name))
    return found


def _of_parts(parts: list[tuple[int, int]], length: int, name: str) -> Origin:
    if sum(n * each for n, each in parts) != length:
        return ChosenRows(length, cut=name)
    if len(parts) == 1:
        return OfRows(parts[0][0], Place(0, parts[0][1]))
    if len(set(parts)) == 1 and parts[0][1] == 1:
        return OfRows(parts[0][0], Place(0, len(parts), copies=True))
    return JoinedRows(tuple(parts))
