"""The same numbers in other places: what weights that were converted by hand are often like."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dream.tools.port_check.verdict import Row

Array = NDArray[Any]
CLOSE = 1e-4
"""For recognizing: far above rounding, far below what tells activations apart."""


def of_values(row: Row, role: str, old: Array, new: Array) -> Iterator[str]:
    """The same numbers in other places?"""
    if old.shape != new.shape or not close(np.sort(old.ravel()), np.sort(new.ravel())):
        if row.old.summed | row.new.summed and role == "bias":
            yield "torch adds two biases: the other framework's one is their sum."
        return
    if old.ndim == 2 and old.shape[0] == old.shape[1] and close(old.T, new):
        yield "The kernel is transposed."
    elif row.old.kind.startswith("conv") and close(np.flip(old, tuple(range(old.ndim - 2))), new):
        yield "The kernel is flipped in space."
    elif gates := _gates(row.old.kind, old, new):
        yield gates
    elif role == "kernel" and row.old.kind == "dense" and close(_by_rows(old), _by_rows(new)):
        yield (
            "The kernel's rows are the same in another order: the map before it is flattened "
            "channels first in torch, channels last in Keras."
        )
    else:
        yield "The same numbers are there in another order."


_GATES = {"lstm": ("i", "f", "g", "o"), "gru": ("z", "r", "n")}


def _gates(kind: str, old: Array, new: Array) -> str:
    names = _GATES.get(kind, ())
    for order in permutations(range(len(names))):
        blocks = np.split(old, max(1, len(names)), axis=-1)
        if names and close(np.concatenate([blocks[i] for i in order], -1), new):
            found = ", ".join(names[i] for i in order)
            return (
                f"The gates are in another order: {found} where {', '.join(names)} belong (in "
                "Keras's order; torch's GRU has r, z, n)."
            )
    return ""


def _by_rows(kernel: Array) -> Array:
    return kernel[np.lexsort(kernel.T)]


def permuted(a: Array, b: Array) -> bool:
    """Whether each sample has the same numbers in other places."""
    if a.shape[:1] != b.shape[:1] or a.size != b.size or not a.size:
        return False
    x, y = (np.sort(np.reshape(z, (len(z), -1)), -1) for z in (a, b))
    return close(x, y)


def close(a: Array, b: Array) -> bool:
    bound = CLOSE * max(1e-30, float(np.max(np.abs(a), initial=0)))
    return a.shape == b.shape and bool(np.max(np.abs(a - b), initial=0) <= bound)
