"""The few numbers that all ranks tell each other with a backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

SIZE = 6
"""Numbers in a message: the loss, what was counted beyond what was expected, whether the loss's
parts count differently, whether a divisor is no longer what it was found to be, and a stamp of the
optimizers' learning rates with its square."""
VALUE, EXTRA, PARTS, OVERTAKEN, STAMP, SQUARE = range(SIZE)

Numbers = Sequence[float] | torch.Tensor
"""A message: a tensor, of shape (SIZE,), where its numbers are on a device that is not waited
for."""


class Stamped(Protocol):
    """What sees by a message whether the ranks are alike."""

    def stamp(self) -> int:
        """Return a small number that is to be the same on every rank."""

    def hear(self, stamps: float, squares: float) -> None:
        """Be told the means over the ranks, of the numbers and of their squares."""


def as_tensor(numbers: Numbers, like: torch.Tensor) -> torch.Tensor:
    """A message as a tensor, of a dtype that its loss, `like`, goes into."""
    if isinstance(numbers, torch.Tensor):
        return numbers
    dtype = np.float64 if like.dtype == torch.float64 else np.float32
    return torch.from_numpy(np.array(numbers, dtype))  # in a third of torch.tensor's time
