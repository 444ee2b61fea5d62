"""What is timed: each operation on tensors of the job's framework, and memcpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dream.collectives import Communicator

Call = Callable[[], Any]
Make = Callable[[int], Any]
"""A tensor of so many elements."""


def operation(ranks: Communicator, name: str, elements: int, make: Make) -> Call:
    """elements: of the larger side, a multiple of the ranks."""
    share = elements // ranks.world_size
    if name == "scatter":
        part = make(share)
        parts = [make(share) for _ in range(ranks.world_size)] if ranks.rank == 0 else None
        return lambda: ranks.scatter(parts, like=part)
    x = make(share if name in ("all_gather", "gather") else elements)
    calls: dict[str, Call] = {
        "all_reduce": lambda: ranks.all_reduce(x, "sum"),
        "reduce": lambda: ranks.reduce(x, "sum"),
        "broadcast": lambda: ranks.broadcast(x),
        "all_gather": lambda: ranks.all_gather(x),
        "gather": lambda: ranks.gather(x),
        "reduce_scatter": lambda: ranks.reduce_scatter(x, "sum"),
        "all_to_all": lambda: ranks.all_to_all(x),
    }
    return calls[name]


def algorithm(ranks: Communicator, name: str, elements: int, make: Make) -> Call:
    x = make(elements)
    return lambda: ranks.all_reduce(x, "sum", algorithm=name)


def memcpy(elements: int) -> Call:
    import numpy as np

    source, target = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    return lambda: np.copyto(target, source)
