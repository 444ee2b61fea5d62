"""Whether what is drawn for was made of a model's parameters alone: then it has no row of a batch,
however many rows it has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.private import saved, shape_of

Known = set[tuple[int, str, str, tuple[int, ...]]]
_LONGEST, _MOST = 32, 1000
_GIVEN_NUMBERS = {"IndexBackward0", "MaskedSelectBackward0", "StackBackward0"}
"""What may have rows by the numbers that a batch gives, or one for each of its samples."""
_LAYERS = {"AddmmBackward0", "TBackward0"}
_MADE = graph.OF_PARAMETERS - _GIVEN_NUMBERS | _LAYERS | {"WeightNormInterfaceBackward0"}
_PICKED = {"EmbeddingBackward0", "IndexBackward0"}
_GROWS = {"ExpandBackward0"}
_BY_MASKS = {"WhereBackward0", "MaskedFillBackward0"}
"""What no gradient goes through, the condition, may have more rows than what it chooses from."""
_PRODUCTS = graph.PRODUCTS - {"MulBackward0"}


def has_rows(name: str, x: Any, rows: int, known: Known, draws: int) -> bool:
    """Whether what a call draws for, by an operation, was not made of parameters alone. rows: of
    the share that it seems to be of. known: what had rows before: as large, and of the same end, in
    the same place among the draws of a call. draws: that place."""
    node = getattr(x, "grad_fn", None)
    if node is None:
        return not of_parameters(x)
    key = draws, name, node.name(), x.shape
    if key in known:
        return True
    found = not of_parameters(x, rows)
    if found and len(known) < _MOST:
        known.add(key)
    return found


def of_parameters(x: Any, rows: int = 0) -> bool:
    """Whether it is a parameter, or made of parameters alone. rows: of a share that it may be of.
    What a layer made of a batch, as most is, says so near its end."""
    if isinstance(x, nn.Parameter):
        return True
    if not isinstance(x, torch.Tensor) or not x.requires_grad or x.grad_fn is None:
        return False
    waiting, seen = [x.grad_fn], set[Any]()
    while waiting:
        node: Any = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        name = node.name()
        if name == graph.LEAF:
            if not isinstance(node.variable, nn.Parameter):
                return False
        elif len(seen) > _LONGEST or not _is_made(node, name, rows):
            return False
        waiting += graph.operands(node)
    return True


def _is_made(node: Any, name: str, rows: int) -> bool:
    if name in _PICKED:
        return rows != 1 and _by_places(saved(node, "indices"))
    return name in _MADE and not _has_others(node, name, rows)


def _by_places(given: torch.Tensor | Sequence[torch.Tensor | None]) -> bool:
    """Whether rows of a table are picked in its own order, as positions are, and not by what a
    batch gives; positions that are spread over a batch of one sample look alike. given: the
    indices, one tensor for each dim that is picked along."""
    indices = [given] if isinstance(given, torch.Tensor) else [x for x in given if x is not None]
    return all(x.numel() > 1 and _is_range(x.flatten()) for x in indices)


def _is_range(x: torch.Tensor) -> bool:
    return torch.equal(x, torch.arange(len(x), dtype=x.dtype, device=x.device))


def _has_others(node: Any, name: str, rows: int) -> bool:
    """Whether something else comes into a node, as a batch does by a product, or by having more
    rows than a parameter."""
    below = [each for each, _ in node.next_functions]
    if name == "CatBackward0":
        return any(shape_of(each)[:1] == (1,) for each in below if each is not None)
    own = [each for each in below if each is not None]
    if len(own) == len(below) and name not in _GROWS | _BY_MASKS:
        return False
    if name in _PRODUCTS or rows == 1:
        return True
    if name not in graph.BROADCAST:
        return False
    grown = _grown(node, own)
    return rows in grown if name in _GROWS else bool(grown)


def _grown(node: Any, below: Sequence[Any]) -> list[int]:
    """The sizes of dims that a node has, and what is below it has not: along whichever dim, as
    tokens before samples have it."""
    made, before = shape_of(node), torch.broadcast_shapes(*map(shape_of, below))
    pairs = zip_longest(reversed(made), reversed(before))
    return [size for size, was in pairs if size is not None and size != was]
