"""Each rank draws its own random numbers, once the first model is prepared."""

from __future__ import annotations

import random

import numpy as np
import tensorflow as tf

from dream import _observers


def seed(number: int) -> None:
    """Seed TensorFlow's generators, for a script that may not do so."""
    tf.random.set_seed(number)


def offset_by(rank: int) -> None:
    """Move TensorFlow's, NumPy's and Python's generators by `rank`; rank 0's stay untouched."""
    if rank and not _observers.draws_alike():
        random.seed(random.getrandbits(32) + rank)
        np.random.seed((int(np.random.randint(2**31)) + rank) % 2**32)
        tf.random.set_seed(random.getrandbits(31))
