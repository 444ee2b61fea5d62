"""framework x ranks x transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FRAMEWORKS = {
    "torch": ("gloo", "horovod"),
    "tensorflow": ("grpc", "horovod"),
    "torch,tensorflow": ("horovod",),
}
SIZES = (2, 3, 4)
CELLS = [
    (framework, size, reduction)
    for framework, reductions in FRAMEWORKS.items()
    for size in SIZES
    for reduction in reductions
]


def over(*sizes: int) -> Callable[[Any], Any]:
    """The test takes framework, size and reduction, of every cell or of these sizes."""
    chosen = [cell for cell in CELLS if cell[1] in (sizes or SIZES)]
    names = [f"{framework}-{size}-{reduction}" for framework, size, reduction in chosen]
    return pytest.mark.parametrize(("framework", "size", "reduction"), chosen, ids=names)
