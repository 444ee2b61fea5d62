"""What a function makes of a batch's rows, found by what it makes of half of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from dream.adapters.pytorch import devices
from dream.adapters.pytorch.loss.coupling.origins import (
    LEFT_OUT,
    ORDERS,
    PICKS,
    ChosenRows,
    JoinedRows,
    MixedRows,
    OfRows,
    Origin,
    is_in_place,
    leaves_of,
    same_values,
    tensors_of,
)
from dream.adapters.pytorch.private import tree_map
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.rows import Place, Rows

Tried = Callable[..., list[torch.Tensor] | None]
_ITSELF = {"one_hot"}
"""Each row by itself, whose width goes by all of them."""
_BY_ELEMENT = {"add", "sub", "rsub", "mul", "div", "lerp", "where", "squeeze", "__add__",
               "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"}  # fmt: skip
"""Element by element: rows stay where they are."""
_CHOOSES = {"nonzero", "argwhere", "masked_select", "where"}
"""What may choose the first half's rows alone."""
_RUNNING = ("cum", "logcum")
NEIGHBOURS = {"unfold", "diff"}
"""What combines rows beside one another: the first ones of all are those of the first half."""
_SURE = 4
"""Rows half of which are no single one, with which any others could be combined: within a model, or
beside others."""
_LARGE, _ROUNDED = 1 << 22, {torch.float16, torch.bfloat16}
"""Elements of a tensor that is taken for made row by row, and types of such."""


def lays_out(name: str, args: Any, n: int) -> bool:
    """Whether a tensor is laid out by the number of its rows, and another size that is worked out:
    half of it would fit too."""
    sizes = [x for x in leaves_of(args[1:]) if type(x) is int]
    return name in ("view", "reshape") and -1 in sizes and n in sizes


def try_halves(
    func: Any, args: Any, given: Any, origins: dict[int, Origin], *, last: bool = False
) -> list[torch.Tensor] | None:
    """What a function gives of the first half of the rows, or of the last; None where it fails, as
    by sizes that the script has written down."""

    def halve(x: Any) -> Any:
        origin = origins.get(id(x))
        if isinstance(origin, (OfRows, JoinedRows)):
            return origin.half(x, last=last)
        return x.detach() if isinstance(x, torch.Tensor) else x

    aside = current.reading()  # nor is what is joined of halves
    with torch.no_grad(), suppress(Exception), warnings.catch_warnings(), aside:
        warnings.simplefilter("ignore")  # halves may be broadcast to what is whole
        args, given = tree_map(halve, (args, given))
        given_tensors = tensors_of((args, given))
        away = [x for x in given_tensors if devices.is_away(x)]
        name = getattr(func, "__name__", "")
        if away and (name == "__getitem__" or not all(map(torch.is_floating_point, given_tensors))):
            args, given = tree_map(_on_cpu, (args, given))
            return [x.to(away[0].device) for x in tensors_of(func(*args, **given))]
        return tensors_of(func(*args, **given))
    return None


def _on_cpu(x: Any) -> Any:
    """A GPU ends the process that looks up a row beyond those that are there; a CPU raises."""
    return x.cpu() if isinstance(x, torch.Tensor) else x


def sorted_out(
    name: str, tried: Tried | None, outs: Sequence[torch.Tensor], origins: dict[int, Origin],
    of: OfRows,
) -> Sequence[Origin | None]:  # fmt: skip
    """Find what a function of rows alone has made. tried: it, on half of the rows."""
    half = None if tried is None else tried(origins)
    if half is None and tried is not None and name == "kthvalue":  # half has no such one, maybe
        return [MixedRows(name, x.detach()) for x in outs]
    joined = next((o for o in origins.values() if isinstance(o, JoinedRows)), None)
    if tried is None or half is None:
        return [joined if joined and joined.fits(x, None) else _by_size(name, x, of) for x in outs]
    if len(half) != len(outs):
        return [None] * len(outs)
    found = [
        joined if joined and joined.fits(x, own) else origin_by_half(name, x, own, of.n, at)
        for at, (x, own) in enumerate(zip(outs, half, strict=True))
    ]
    if found[:1] == [None] and name not in PICKS | _CHOOSES and same_values(outs[0], half[0]):
        last = tried(origins, last=True)  # such as the largest, which the first half had
        if last and not same_values(outs[0], last[0]):
            return [MixedRows(name, outs[0].detach()), *found[1:]]
        if name == "mode":  # most shares have the same
            return [MixedRows(name, x.detach()) for x in outs]
    if name.startswith(_RUNNING) and isinstance(found[0], OfRows):
        last = tried(origins, last=True)  # the first rows know nothing of what follows
        if last and not same_values(found[0].half(outs[0], last=True), last[0]):
            return [MixedRows(name, x.detach()) for x in outs]
    return found


def _by_size(name: str, x: torch.Tensor, of: OfRows) -> Origin | None:
    at = Rows(slice(None), of.n, of.n).find(x.shape)
    if name in _BY_ELEMENT and at and (at.dim, at.each) == (of.place.dim, of.place.each):
        at = of.place  # views stay one after another, as where noise is added to them
    return None if at is None else replace(of, place=at, order=False)


def origin_of(x: torch.Tensor, half: torch.Tensor, n: int) -> OfRows | None:
    """Where what a function made has the rows, if its half is what it made of half of them."""
    if x.dim() != half.dim():
        return None
    for place, rows, own in _places(x, half, n):
        if rows.shape == own.shape and same_values(rows, own):
            return OfRows(n, place)
    return None


def _places(
    x: torch.Tensor, half: torch.Tensor, n: int
) -> Iterator[tuple[Place, torch.Tensor, torch.Tensor]]:
    h = n // 2
    for dim, size in enumerate(x.shape):
        if not size or size % n:
            continue
        each = size // n
        yield Place(dim, each), x.narrow(dim, 0, h * each), half
        if each > 1 and half.shape[dim] == h * each:
            parts = x.unflatten(dim, (each, n)).narrow(dim + 1, 0, h)
            yield Place(dim, each, copies=True), parts, half.unflatten(dim, (each, h))


def origin_by_half(
    name: str, x: torch.Tensor, half: torch.Tensor, n: int, at: int
) -> Origin | None:
    """What a function has made of all rows, by what it made of half of them. at: which of what it
    gave."""
    origin = origin_of(x, half, n)
    if origin is not None:
        return origin
    if name in ORDERS and x.shape == (n,):
        is_order = not x.is_floating_point() and (name == "argsort" or at == 1)
        return OfRows(n, Place(0), order=is_order, sorted=not is_order)
    if begins_with(x, half) and name not in NEIGHBOURS:
        return ChosenRows(len(x)) if len(x) > 1 else None
    gone = x.shape == half.shape
    return None if same_values(x, half) else MixedRows(name, x.detach(), gone=gone)


def begins_with(x: torch.Tensor, half: torch.Tensor) -> bool:
    """Whether the half gave the first rows of what all gave, which are fewer."""
    several = x.dim() and x.dim() == half.dim() and len(half) < len(x)
    return bool(several) and same_values(x[: len(half)], half)


def not_tried(name: str, args: Any, n: int) -> bool:
    """Whether half of a tensor's rows tells nothing of this function: as a single one, which is
    squeezed too."""
    if name == "squeeze" and len(args) == 1 and n // 2 == 1:
        return True
    return name in LEFT_OUT or name in _ITSELF or is_in_place(name) or lays_out(name, args, n)


def tells_nothing(
    name: str, args: Any, leaves: list[Any], outs: list[Any], origins: dict[int, Origin], n: int,
    inside: bool,
) -> bool:  # fmt: skip
    """Whether half of n rows tells nothing of what a function gives of all of them. inside: it is
    called within a model."""
    others = has_others(leaves, origins, n)
    unsure = (others and inside) or (n < _SURE and (others or inside))
    return unsure or too_large([*leaves, *outs]) or not_tried(name, args, n)


def too_large(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether half of these once more may be too much, or rounded otherwise."""
    return any(x.numel() > _LARGE or x.dtype in _ROUNDED for x in tensors)


def has_others(leaves: Sequence[Any], known: Container[int], n: int) -> bool:
    """Whether rows are among these whose origin is not known, as behind a normalisation."""
    others = (x for x in leaves if id(x) not in known)
    return any(n in x.shape[:2] and not isinstance(x, torch.nn.Parameter) for x in others)
