"""Which dim of what a node of the graph made is the batch's rows, and which rows a node takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import call_at
from dream.adapters.pytorch.private import saved, shape_of
from dream.adapters.pytorch.randomness.rows import Rows

_FEW = 24
"""Nodes that are gone down by, to the output whose dim it is."""
_CLOSE = 96
"""Nodes between a loss and the rows that it is of."""
_LAID_OUT = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0",
             "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0"}  # fmt: skip
_DROPS = {"SelectBackward0", "UnbindBackward0"}
_SWAPS = {"TransposeBackward0", "TBackward0", "PermuteBackward0"}


def is_rows(node: Any, dim: int) -> bool | None:
    """Whether a dim of what a node made is the batch's rows; None where the way down to the output
    that it comes from does not tell."""
    for _ in range(_FEW):
        call = call_at(node)
        if call is not None:
            place = None if call.share is None else Rows.of(call.share).find(shape_of(node))
            if place is None:
                return None
            if _is_made(node, place.dim):  # which has as many by chance
                return False if place.dim == dim else None
            return place.dim == dim
        below = _below(node, node.name(), dim)
        if below is None:
            return None
        node, dim = below
    return None


def _is_made(node: Any, dim: int) -> bool:
    """Whether a dim of an output is seen to be one that the model made: of what it stacked, as
    heads or steps, or of weights."""
    for _ in range(_FEW):
        name = node.name()
        below: tuple[Any, int] | None
        if name == "MkldnnRnnLayerBackward0":  # time first, and turned after it
            return dim == 0
        if name == "CudnnRnnBackward0":
            return dim == int(bool(saved(node, "batch_first")))
        if name in ("AddmmBackward0", "MmBackward0"):
            if dim == 1:
                return True
            below = node.next_functions[-2][0], 0
        elif name == "StackBackward0":
            stacked = graph.signed(saved(node, "dim")) % len(shape_of(node))
            if stacked == dim:
                return True
            below = graph.operands(node)[0], dim - (dim > stacked)
        else:
            below = _below(node, name, dim)
        if below is None or below[0] is None:
            return False
        node, dim = below
    return False


def is_of_layer(node: Any, dim: int) -> bool:
    """Whether a dim of what a node made is seen to be a layer's first one, of rows or of several
    for each."""
    for _ in range(_FEW):
        if node.name() in graph.LAYERS:
            return not dim and not _is_made(node, dim)
        below = _below(node, node.name(), dim)
        if below is None:
            return False
        node, dim = below
    return False


def is_beside_rows(node: Any) -> bool:
    """Whether what a node works along is seen to be no dim of rows, whatever its size."""
    after = graph.operands(node)
    sizes = shape_of(after[0]) if after else ()
    along = graph.removed_by(node, node.name(), sizes)
    dims = range(len(sizes)) if along is None else along
    return bool(sizes) and all(is_rows(after[0], dim) is False for dim in dims)


def is_within_samples(node: Any, count: int) -> bool:
    """Whether what a node works along lies in one of as many parts as there are samples, that a
    split by a list of sizes has cut: of tokens that are laid end to end, one's own."""
    after = graph.operands(node)
    along = graph.removed_by(node, node.name(), shape_of(after[0])) if after else None
    if not along or len(along) != 1:
        return False
    below: tuple[Any, int] | None = after[0], along[0]
    for _ in range(_FEW):
        if below is None or call_at(below[0]) is not None:
            return False
        node, dim = below
        if node.name() == "SplitWithSizesBackward0":
            parts, of = saved(node, "split_sizes"), graph.signed(saved(node, "dim"))
            return len(parts) == count and dim == of % len(shape_of(graph.operands(node)[0]))
        below = _below(node, node.name(), dim)
    return False


def rows_of(node: Any, count: int) -> frozenset[int] | None:
    """The rows of a batch that a node's number is computed from, each taken by itself; None where
    some of it is of all of them. count: rows that there are."""
    found: set[int] = set()
    seen: set[Any] = set()
    left = [(node, 0)]
    while left:
        node, number = left.pop()
        if (node, number) in seen:
            continue
        name = node.name()
        if len(seen) == _CLOSE or call_at(node) is not None or name in graph.STACK:
            return None
        seen.add((node, number))
        row = _taken(node, name, number, count)
        if row is not None:
            found.add(row)
        elif name == graph.LEAF and not isinstance(node.variable, torch.nn.Parameter):
            return None
        else:
            left += [(after, at) for after, at in node.next_functions if after is not None]
    return frozenset(found) if found else None


def takes_one(node: Any, name: str) -> int | None:
    """The dim along which a node takes one alone; None where it does not."""
    if name == "SliceBackward0":
        start, stop = (graph.signed(saved(node, each)) for each in ("start", "end"))
        return int(saved(node, "dim")) if stop - start == 1 else None
    if name not in _DROPS:
        return None
    dim = graph.signed(saved(node, "dim"))
    return dim if dim >= 0 else dim + len(shape_of(node)) + 1


def _taken(node: Any, name: str, number: int, count: int) -> int | None:
    """The one row that a node takes of what is below it. number: which of what it made."""
    dim = takes_one(node, name)
    if dim is None:
        return None
    below = graph.operands(node)[0]
    sizes = shape_of(below)
    if len(sizes) <= dim or sizes[dim] != count:
        return None
    rows = is_rows(below, dim)
    if not (dim == 0 if rows is None else rows):
        return None
    if name == "UnbindBackward0":
        return number
    at = graph.signed(saved(node, "index" if name == "SelectBackward0" else "start"))
    return int(at) % count


def _below(node: Any, name: str, dim: int) -> tuple[Any, int] | None:
    """The node, and the dim of what it made, that a dim of what a node made is."""
    after = graph.operands(node)
    if not after or name == graph.LEAF or name in graph.STACK:
        return None
    sizes, first = shape_of(node), after[0]
    before = shape_of(first)
    if name in _DROPS:
        return first, dim + (dim >= (takes_one(node, name) or 0))
    if name in _SWAPS:
        at: int | None = _turned(node, name, dim, len(sizes))
    elif name in _LAID_OUT:
        at = _laid_out(sizes, before, dim)
    elif name == "IndexBackward0":
        at = 0 if dim == 0 else None
    elif graph.is_loss(name) and len(sizes) < len(before):  # of classes
        at = dim + (dim > 0)
    elif (removed := graph.removed_by(node, name, before)) is not None:
        at = dim if len(sizes) == len(before) else _kept(removed, len(before), dim)
    elif name in graph.PRODUCTS and name != "MulBackward0":
        return None
    else:
        return _of_each(after, len(sizes), sizes[dim], dim)
    return None if at is None else (first, at)


def _of_each(after: Sequence[Any], many: int, size: int, dim: int) -> tuple[Any, int] | None:
    """Of what is made element by element: the operand that has this dim, not one to be repeated."""
    for each in after:
        before = shape_of(each)
        at = dim - many + len(before)
        if each.name() != graph.LEAF and at >= 0 and (before[at] == size or len(before) == many):
            return each, at
    return None


def _turned(node: Any, name: str, dim: int, many: int) -> int:
    if name == "PermuteBackward0":
        return graph.signed(saved(node, "dims")[dim]) % many
    pair = (0, 1) if name == "TBackward0" else (saved(node, "dim0"), saved(node, "dim1"))
    one, other = (graph.signed(each) % many for each in pair)
    return {one: other, other: one}.get(dim, dim)


def _laid_out(sizes: Sequence[int], before: Sequence[int], dim: int) -> int | None:
    """The dim that begins where this one does."""
    ahead = prod(sizes[:dim])
    for at, size in enumerate(before):
        if prod(before[:at]) == ahead and (size > 1 or sizes[dim] == 1):
            return at
    return None


def _kept(removed: Sequence[int], many: int, dim: int) -> int | None:
    left = [each for each in range(many) if each not in removed]
    return left[dim] if dim < len(left) else None
