"""Adasum in NumPy: the formula of the paper, as Horovod's core has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def of_two(a: Any, b: Any) -> Any:
    a, b = a.astype(np.float64), b.astype(np.float64)
    dot, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    share_a = 1 - dot / of_a / 2 if of_a >= 1e-8 else 1.0
    share_b = 1 - dot / of_b / 2 if of_b >= 1e-8 else 1.0
    return share_a * a + share_b * b


def of_all(gradients: Sequence[Any]) -> Any:
    """Pairs, then pairs of pairs."""
    while len(gradients) > 1:
        gradients = [of_two(a, b) for a, b in zip(gradients[::2], gradients[1::2], strict=True)]
    return gradients[0]
