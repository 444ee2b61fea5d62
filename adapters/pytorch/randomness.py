"""Each rank draws its own random numbers, once the first model is prepared."""

from __future__ import annotations

import random
import sys

import torch

from dream import _observers


def seed(number: int) -> None:
    """Seed torch's generators, for a script that may not do so."""
    torch.manual_seed(number)


def offset_by(rank: int) -> None:
    """Move torch's, NumPy's and Python's generators by `rank`; rank 0's stay untouched."""
    if rank == 0 or _observers.draws_alike():
        return
    torch.manual_seed(torch.initial_seed() + rank)
    random.seed(random.getrandbits(32) + rank)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed((int(np.random.randint(2**31)) + rank) % 2**32)
