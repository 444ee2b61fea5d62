"""Sums and means of global losses that a loop adds up off their graph: every rank has the same."""

from __future__ import annotations

from collections import deque
from typing import final

import numpy as np
import torch

_MOST = 10_000
"""Losses that are kept: a sum of more is not known again."""
_CLOSE = 1e-5


@final
class LossSums:
    """Knows a number again that is the sum or the mean of the last global losses, however many.
    That is tried, as a number does not tell what it was made of."""

    def __init__(self) -> None:
        self._new: list[torch.Tensor] = []
        self._values: deque[float] = deque(maxlen=_MOST)

    def add(self, loss: torch.Tensor) -> None:
        """Keep a loss, without reading it: on a GPU that would wait."""
        self._new.append(loss)
        del self._new[:-_MOST]

    def give(self, x: torch.Tensor) -> bool:
        """Tell whether this is such a number; one that is about to be read in any case."""
        if x.dim() or not x.is_floating_point() or not (self._new or self._values):
            return False
        if self._new:
            self._values.extend(torch.stack([each.to(x) for each in self._new]).tolist())
            self._new.clear()
        sums = np.cumsum([*reversed(self._values)])
        means = sums / np.arange(1, len(sums) + 1)
        value = float(x.detach())
        return bool(np.isclose([sums, means], value, _CLOSE, 0.0).any())
