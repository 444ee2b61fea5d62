"""Forms that numbers over the rows of a batch are brought into, by what all rows give."""

from __future__ import annotations

from math import inf

import torch

_FEWEST = 4
"""Rows that a share must have, for a form to be no chance."""
_NEAR, _EXACT = 1e-4, 1e-5
_SUM, _MEAN, _SPREAD, _CENTRED = 1.0, 2.0, 3.0, 4.0
FORMS = {
    _SUM: ("has a sum of 1", 2),
    _MEAN: ("has a mean of 1", 2),
    _SPREAD: ("has a mean of 0 and a deviation of 1", 2),
    _CENTRED: ("has a mean of 0", 3),
}
"""What a constant over rows is found to be; and in how many looks running."""


def form_of(value: torch.Tensor, dim: int) -> float:
    """Which form of a whole batch's a constant has, over its rows; 0 for none, and -inf where it
    cannot tell: numbers such as masks, counts and signs have them by chance."""
    x = value.to(device="cpu", dtype=torch.float64).movedim(dim, 0)
    if len(x) < _FEWEST or not bool(x.isfinite().all()):
        return -inf
    if float((x - x.round()).abs().max()) < _EXACT:
        return -inf
    rows = x.reshape(len(x), -1)
    sizes = rows.abs()
    if float(sizes.max() - sizes.min()) < _EXACT and float(rows.min()) < 0.0:
        return -inf
    whole = rows.reshape(-1, 1)
    for each in (rows, whole):
        if bool(((each.sum(0) - 1.0).abs() < _NEAR).all()):
            return _SUM
    if rows.shape[1] > 1 and _normalised(rows.T):
        return 0.0  # each sample by itself
    return _normalised(rows) or _normalised(whole)


def _normalised(columns: torch.Tensor) -> float:
    """The form that every column has."""
    mean, spread = columns.mean(0), columns.std(0, correction=0)
    unbiased = columns.std(0)
    if bool(((mean - 1.0).abs() < _NEAR).all()) and float((columns - 1.0).abs().max()) > 1e-2:
        return _MEAN
    if not bool((spread > 0.0).all()) or not bool((mean.abs() < _NEAR * spread).all()):
        return 0.0
    of_one = [bool(((each - 1.0).abs() < 1e-3).all()) for each in (spread, unbiased)]
    return _SPREAD if any(of_one) else _CENTRED
