"""Rows that a script puts in an order of its own, as for mixup: all of them in one order are what
they were, and beside others of the batch they are not those of one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dream.adapters.pytorch.loss.coupling.origins import MixedRows, OfRows, Origin, UnknownOrder

_MOST = 4096
"""Rows of a share whose order is looked at."""
_PICKS = {"__getitem__", "index_select"}
_JOINS = {"cat", "concat", "concatenate", "vstack", "stack"}
_NAME = "rows in an order of the script's"


def put_in_order(
    name: str, args: Any, origins: Mapping[int, Origin], out: torch.Tensor
) -> OfRows | None:
    """Return what rows are that were all picked, each once, by numbers that were not made of the
    batch; None where they were not."""
    of = origins.get(id(args[0])) if name in _PICKS and args else None
    if not isinstance(of, OfRows) or (of.place.dim, of.place.each) != (0, 1):
        return None
    order = None
    with suppress(Exception):  # a script never fails of being looked at
        index = _index(name, args)
        own = not isinstance(index, torch.Tensor) or id(index) not in origins
        order = _order_in(index, of.n) if own and out.shape[:1] == (of.n,) else None
    if order is None:
        return None
    if isinstance(of.by, UnknownOrder):
        return replace(of, by=UnknownOrder())
    whole = order if of.by is None else tuple(of.by[at] for at in order)
    return replace(of, by=None if _is_sorted(whole) else whole)


def _index(name: str, args: Any) -> Any:
    """What picks rows, where the other dims are left as they are."""
    if name == "index_select":
        return args[2] if len(args) > 2 and args[1] == 0 else None
    given = args[1] if len(args) > 1 else None
    if not isinstance(given, tuple):
        return given
    rest = all(each is Ellipsis or each == slice(None) for each in given[1:])
    return given[0] if given and rest else None


def _order_in(index: Any, n: int) -> tuple[int, ...] | None:
    if isinstance(index, torch.Tensor):
        index = index.detach().cpu().numpy() if not index.is_floating_point() else None
    if not isinstance(index, (list, np.ndarray)) or len(index) != n or n > _MOST:
        return None
    found = np.asarray(index)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        return None
    order = tuple(int(at) for at in found % n)
    return order if sorted(order) == list(range(n)) else None


def _is_sorted(order: Sequence[int]) -> bool:
    return all(at == place for place, at in enumerate(order))


def in_order_of(found: Origin | None, origins: Mapping[int, Origin]) -> Origin | None:
    """Return the origin of what was made row by row, in the order that its rows had."""
    by = next((each.by for each in origins.values() if isinstance(each, OfRows)), None)
    return replace(found, by=by) if by is not None and isinstance(found, OfRows) else found


def met_others(
    name: str, leaves: Sequence[torch.Tensor], origins: Mapping[int, Origin]
) -> MixedRows | None:
    """Return what rows are that meet others of the batch, of which they are not."""
    if name in _JOINS:  # beside one another they have not met yet
        return None
    rows = [(x, each) for x in leaves if isinstance(each := origins.get(id(x)), OfRows)]
    orders = {each.by for _, each in rows}
    if len(orders) < 2:
        return None
    unknown = [each for each in orders if isinstance(each, UnknownOrder)]
    found = {each for each in orders if not isinstance(each, UnknownOrder)}
    found |= {each.by for each in unknown if each.known}
    if len(found) > 1:
        return MixedRows(_NAME, next(x for x, each in rows if each.by is not None).detach())
    for order in unknown if found else ():
        order.settle(*found)
    return None
