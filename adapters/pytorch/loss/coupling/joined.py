"""Rows of several batches one after another, as of two loaders' whose sizes differ: a model that is
called on them all at once takes each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dream.adapters.pytorch.loss.coupling.origins import (
    ChosenRows,
    JoinedRows,
    OfRows,
    Origin,
    leaves_of,
)
from dream.adapters.pytorch.randomness.rows import Place

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
    pieces = [_parts(x, origins.get(id(x)), of_batch) for x in leaves_of(args[0])]
    known = [part for each in pieces for part in each]
    if not all(pieces) or len({n for n, _ in known}) == 1:
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
    return [(1, len(x))] if origin is None and of_batch([x]) else ()


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
