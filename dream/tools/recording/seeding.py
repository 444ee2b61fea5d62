"""Generators that a script does not seed itself start from numbers that are known.

Rank 0's from 0, as those of one device do; the others' from their rank, for a script that seeds
nothing draws other numbers on each rank.
"""

from __future__ import annotations

import random
import sys

from dream import _registry
from dream._framework import ImportWatch
from dream._spec import FRAMEWORKS


class Seeding:
    """Seeds Python's generator and NumPy's now, and a framework's once it is imported."""

    def __init__(self, number: int) -> None:
        import numpy as np

        self._number = number
        self._left = list(FRAMEWORKS)
        random.seed(number)
        np.random.seed(number)
        self._watch()

    def _watch(self) -> None:
        if self._left:
            ImportWatch(self._imported).install()

    def _imported(self) -> None:
        for framework in [name for name in self._left if name in sys.modules]:
            self._left.remove(framework)
            _registry.load(_registry.SEEDS[framework])(self._number)
        self._watch()
