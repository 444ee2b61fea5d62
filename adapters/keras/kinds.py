"""What a function of a batch gives: a mean over samples, a sum over them, or neither, by what it
gives for a batch that is made up, and for its parts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import keras
import numpy as np
from keras import ops, tree

Kind = Literal["mean", "sum", "zero", "unknown"]
"""A mean over samples, a sum over them, 0 for every batch that it is tried on, or neither."""
CUTS = (4, 2)
_DRAWS = 9
_RIGHT = (0, 1, 3, 6)
ROWS = 7
"""Rows of the made-up batches on which something is tried, and where they are cut."""


def kinds_of(function: Any, like: tuple[Any, ...], failing: Kind = "unknown") -> list[Kind]:
    """Tell means over samples from sums over them, and both from anything else, by what a function
    gives for made-up batches that are cut in two.

    function: gives a list of tensors, whose sums count. like: tensors as it is given them, nested,
    or None. failing: what it is if it takes none that are made up, or draws at random.
    """
    widths = [int(x.shape[-1] or 2) for each in like[1:] for x in tree.flatten(each)
              if x is not None and len(x.shape) > 1]  # fmt: skip
    batch = _telling(function, like, max([2, *widths]))
    kinds = _kinds_for(function, batch, "unknown")
    if kinds is None:
        return [failing]
    at_extremes = _kinds_for(function, uneven(batch), None) or [None] * len(kinds)
    pairs = zip(kinds, at_extremes, strict=True)
    return [failing if one is None else _of_both(one, other) for one, other in pairs]


def _of_both(one: Kind, at_extremes: Kind | None) -> Kind:
    """Return what gives such numbers for two batches. None: the other one tells nothing."""
    if at_extremes is None or at_extremes in ("zero", one):
        return one
    return at_extremes if one == "zero" else "unknown"


def _telling(function: Any, like: Any, classes: int) -> Any:
    """Make a batch up for which a function gives other numbers than 0, mean and sum of zeros alike,
    as a count of right answers may be: with labels of 0 and 1 later, and with some right answers at
    last. The first one if none does."""
    for draw in range(_DRAWS):
        batch = made_up(like, classes, draw)
        with suppress(Exception):  # it may take none, or have no target to be right about
            if draw == _DRAWS - 1:
                batch = _answered(batch)
            elif draw > _DRAWS // 2:
                labels = tree.map_structure(lambda a: None if a is None else a.round(), batch[1:2])
                batch = (batch[0], *labels, *batch[2:])
            found = function(*cut(batch, slice(None)))
            if all(np.any(ops.convert_to_numpy(x)) for x in found):
                return batch
    return made_up(like, classes)


def _answered(batch: Any) -> Any:
    """Have the targets of some rows, more of the first, be what is predicted for them."""
    target, predicted = batch[1:3]  # others are not taken, and so tell nothing
    right = predicted
    if target.shape != predicted.shape:
        right = predicted.argmax(-1).reshape(target.shape)
    some = np.isin(np.arange(ROWS), _RIGHT).reshape(-1, *(1,) * (target.ndim - 1))
    return (batch[0], np.where(some, right, target).astype(target.dtype), *batch[2:])


def _kinds_for(function: Any, batch: Any, infinite: Kind | None) -> list[Kind | None] | None:
    """Tell by one batch; None of what is drawn at random, and where the function does not take
    such a batch. infinite: what it is of what is no number."""

    def values(rows: slice) -> list[float]:
        found = function(*cut(batch, rows))
        return [float(np.sum(ops.convert_to_numpy(x))) for x in found]

    try:
        whole, again = values(slice(None)), values(slice(None))
        cuts = [(n, values(slice(n)), values(slice(n, None))) for n in CUTS]
    except Exception:
        return None  # made-up values may be none that it takes
    if not np.array_equal(whole, again, equal_nan=True):
        return [None] * len(whole)
    parts = [[(n, a[place], b[place]) for n, a, b in cuts] for place in range(len(whole))]
    return [
        _kind(value, each) if np.isfinite([value, *(x for cut in each for x in cut)]).all()
        else infinite
        for value, each in zip(whole, parts, strict=True)
    ]  # fmt: skip


def cut(batch: Any, rows: slice) -> Any:
    """Return tensors of a batch's rows, which share no memory with it: on torch a mask changes
    sample weights in place."""
    return tree.map_structure(
        lambda a: None if a is None else ops.convert_to_tensor(np.array(a[rows])), batch
    )


def _kind(whole: float, cuts: Sequence[tuple[int, float, float]]) -> Kind:
    if not any((whole, *(x for _, a, b in cuts for x in (a, b)))):
        return "zero"
    if all(_close(whole, (n * a + (ROWS - n) * b) / ROWS) for n, a, b in cuts):
        return "mean"
    return "sum" if all(_close(whole, a + b) for _, a, b in cuts) else "unknown"


def _close(found: float, expected: float) -> bool:
    return bool(np.isclose(found, expected, rtol=1e-4, atol=1e-6))


def made_up(like: Any, classes: int, seed: int = 0) -> Any:
    """Make a batch of `ROWS` rows up, the same on every rank. like: tensors, nested, or None.
    classes: whole numbers are below it."""
    draw = np.random.default_rng(seed)
    return tree.map_structure(lambda x: _made_up(x, draw, classes), like)


def uneven(batch: Any, size: float = 1000.0) -> Any:
    """Have the later rows of a batch be of another sign, and far larger: what is clipped, or left
    out, by its size or its sign is seen to be. size: how many times larger."""
    large = np.where(np.arange(ROWS) < max(CUTS), 1.0, -size)

    def stretched(a: Any) -> Any:
        if a is None or a.dtype.kind != "f":
            return a
        return a * large.reshape(-1, *(1,) * (a.ndim - 1)).astype(a.dtype)

    return tree.map_structure(stretched, batch)


def _made_up(like: Any, draw: np.random.Generator, classes: int) -> Any:
    if like is None:
        return None
    shape = (ROWS, *(3 if size is None else int(size) for size in like.shape[1:]))
    kind = keras.backend.standardize_dtype(like.dtype)
    if "float" in kind:
        return draw.uniform(0.05, 0.95, shape).astype(kind)
    return draw.integers(0, classes, shape).astype(str if kind == "string" else kind)
