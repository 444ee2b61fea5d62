"""Operations in which each rank goes on with its own piece, and how the cut dim goes along.

A rule is given the function and its arguments, and gives `NotImplemented` where it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.nn import functional as F

from dream.adapters.pytorch.parallel.split.pieces import Piece

Rule = Callable[..., Any]


def _resized(func: Any, x: Any, *sizes: Any, **kwargs: Any) -> Any:
    wanted = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if kwargs or not all(type(size) is int for size in wanted):
        return NotImplemented
    return _reshaped(func, x, _resolved(x.shape, wanted))


def _flattened(_: Any, x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    shape, first, last = x.shape, start_dim % x.dim(), end_dim % x.dim()
    sizes = [*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]]
    return _reshaped(torch.Tensor.reshape, x, sizes)


def _unflattened(_: Any, x: Any, dim: int, sizes: Any) -> Any:
    if not all(type(size) is int for size in sizes):
        return NotImplemented
    dim %= x.dim()
    inner = _resolved(x.shape[dim : dim + 1], sizes)
    return _reshaped(torch.Tensor.reshape, x, [*x.shape[:dim], *inner, *x.shape[dim + 1 :]])


def _reshaped(func: Any, x: Piece, sizes: Sequence[int]) -> Any:
    """The piece is a run of elements within each index of the dims before the cut one; it stays
    one where a dim begins at the same place, and has equal parts."""
    before = prod(x.shape[: x.axis])
    if 0 in x.shape or prod(sizes) != prod(x.shape):
        return NotImplemented
    for axis, size in enumerate(sizes):
        if prod(sizes[:axis]) == before and size % x.parts == 0:
            local = [*sizes[:axis], size // x.parts, *sizes[axis + 1 :]]
            return x.with_local(func(x.local, *[local]), axis)
    return NotImplemented


def _resolved(shape: Sequence[int], wanted: Sequence[int]) -> list[int]:
    known = prod(size for size in wanted if size != -1)
    return [prod(shape) // known if size == -1 and known else size for size in wanted]


def _swapped(func: Any, x: Any, dim0: int, dim1: int) -> Any:
    a, b = dim0 % x.dim(), dim1 % x.dim()
    axis = {a: b, b: a}.get(x.axis, x.axis)
    return x.with_local(func(x.local, a, b), axis)


def _permuted(func: Any, x: Any, *dims: Any, **kwargs: Any) -> Any:
    if kwargs:
        return NotImplemented
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = [dim % x.dim() for dim in order]
    return x.with_local(func(x.local, order), order.index(x.axis))


def _each(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Element by element, whatever the other arguments say."""
    if not isinstance(x, Piece) or any(isinstance(a, (Piece, torch.Tensor)) for a in args):
        return NotImplemented
    return x.with_local(func(x.local, *args, **kwargs))


def _pairwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Element by element of several tensors, which may be broadcast. In place, of a piece only."""
    (first, *others) = [arg for arg in args if isinstance(arg, Piece)]
    if func in _IN_PLACE and args[0] is not first:
        return NotImplemented
    if kwargs or not isinstance(args[0], (Piece, torch.Tensor)):
        return NotImplemented
    if any(o.shape != first.shape or o.axis != first.axis for o in others):
        return NotImplemented
    own = [_beside(first, arg) for arg in args]
    if any(arg is NotImplemented for arg in own):
        return NotImplemented
    return first.with_local(func(*own))


def _beside(piece: Piece, value: Any) -> Any:
    """What of an argument belongs to a piece. A whole tensor that is trained is not known here:
    its gradient must be added up over the ranks."""
    if isinstance(value, Piece):
        return value.local
    if not isinstance(value, torch.Tensor):
        return value
    if type(value) is not torch.Tensor or value.requires_grad or value.dim() > piece.dim():
        return NotImplemented
    from_end = piece.axis - piece.dim()
    if value.dim() < -from_end or value.shape[from_end] == 1:
        return value
    return piece.own(value, from_end)


def _product(func: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    """Of matrices in the last two dims; the cut one is before them."""
    if kwargs or not isinstance(a, Piece) or not _heads_alike(a, b):
        return NotImplemented
    return a.with_local(func(a.local, b.local))


def _normalised(func: Any, x: Any, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    if dim is None or not isinstance(x, Piece) or dim % x.dim() == x.axis:
        return NotImplemented
    return x.with_local(func(x.local, dim, *args, **kwargs))


def _dropped(
    func: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """By the mask that one device would draw."""
    del inplace
    if not training or p == 0.0:
        return x
    mask = func(torch.ones(x.shape, dtype=x.dtype, device=x.device), p)
    return x.with_local(x.local * x.own(mask, x.axis))


def _attention(
    func: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    **options: Any,
) -> Any:  # fmt: skip
    given = (query, key, value)
    if dropout_p or not all(isinstance(x, Piece) and _heads_alike(query, x) for x in given):
        return NotImplemented
    mask = None if attn_mask is None else _beside(query, attn_mask)
    if mask is NotImplemented:
        return NotImplemented
    q, k, v = (x.local for x in given)
    return query.with_local(func(q, k, v, attn_mask=mask, **options))


def _heads_alike(a: Any, b: Any) -> bool:
    same = isinstance(a, Piece) and a.dim() == b.dim() and a.shape[:-2] == b.shape[:-2]
    return same and a.axis == b.axis and a.axis < a.dim() - 2


_NAMED: dict[Rule, tuple[str, ...]] = {
    _resized: ("view", "reshape"),
    _flattened: ("flatten",),
    _unflattened: ("unflatten",),
    _swapped: ("transpose", "swapaxes"),
    _permuted: ("permute",),
    _each: ("relu", "gelu", "silu", "tanh", "sigmoid", "exp", "square", "neg", "__neg__", "float",
            "contiguous", "leaky_relu", "elu", "softplus", "to", "detach", "clone", "relu_"),
    _pairwise: ("add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__",
                "__rmul__", "__truediv__", "__pow__", "pow", "masked_fill", "add_", "sub_", "mul_",
                "div_", "masked_fill_"),
    _product: ("matmul", "__matmul__", "bmm"),
    _normalised: ("softmax",),
    _dropped: ("dropout",),
    _attention: ("scaled_dot_product_attention",),
}  # fmt: skip
RULES: dict[Any, Rule] = {
    getattr(owner, name): rule
    for rule, names in _NAMED.items()
    for name in names
    for owner in (torch, torch.Tensor, F)
    if callable(getattr(owner, name, None))
}
"""By the function, or the method of tensors."""
_IN_PLACE = {getattr(torch.Tensor, name) for name in ("add_", "sub_", "mul_", "div_",
                                                      "masked_fill_")}  # fmt: skip
