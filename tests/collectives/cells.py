"""framework x ranks x transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FRAMEWORKS = {
    "torch": ("gloo", "horovod", "shared_memory"),
    "tensorflow": ("grpc", "horovod", "shared_memory"),
    "torch,tensorflow": ("horovod", "shared_memory"),
}
SIZES = (2, 3, 4)
CELLS = [
    (framework, size, reduction)
    for framework, reductions in FRAMEWORKS.items()
    for size in SIZES
    for reduction in reductions
]
FIRST = (
    ("torch", 2, "gloo"),
    ("tensorflow", 2, "shared_memory"),
    ("torch,tensorflow", 2, "horovod"),
)
"""What every run of the tests takes; `make exhaustive` takes the rest."""


def over(*sizes: int, framework: str = "") -> Callable[[Any], Any]:
    """The test takes framework, size and reduction, of every cell or of these sizes, and of all
    frameworks or of one."""
    cells = [cell for cell in CELLS if framework in ("", cell[0])]
    chosen = [_marked(*cell) for cell in cells if cell[1] in (sizes or SIZES)]
    return pytest.mark.parametrize(("framework", "size", "reduction"), chosen)


def _marked(framework: str, size: int, reduction: str) -> Any:
    marks = () if (framework, size, reduction) in FIRST else (pytest.mark.exhaustive,)
    name = f"{framework}-{size}-{reduction}"
    return pytest.param(framework, size, reduction, id=name, marks=marks)
