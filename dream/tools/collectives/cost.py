"""What a collective moves.

Bus bandwidth is that of NCCL's tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): bytes by
second, times a factor for the operation which makes it the speed that the links between P ranks
must have had, whatever P is. The size there is that of the larger side: what a rank gives to
all_reduce, reduce, broadcast, reduce_scatter, scatter and all_to_all, what comes of all_gather
and gather.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

ELEMENT = 4
"""Bytes of a float32, which is what is measured."""

FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
}
"""By operation."""


def bus_bandwidth(operation: str, size: int, seconds: float, ranks: int) -> float:
    """Bytes a second. size: in bytes, of the larger side."""
    return size / seconds * FACTORS[operation](ranks)


def naive(size: int, ranks: int) -> Sequence[float]:
    """N(P-1) at the master, N elsewhere."""
    return [size * (ranks - 1), *[size] * (ranks - 1)]


def ring(size: int, ranks: int) -> Sequence[float]:
    """2N(P-1)/P everywhere, where P divides the elements."""
    return [2 * size * (ranks - 1) / ranks] * ranks


def halving_doubling(size: int, ranks: int) -> Sequence[float]:
    """Rabenseifner's: 2N(C-1)/C within C ranks, the largest power of two, where C divides the
    elements. Ranks beyond it hand theirs to a partner, which returns the result: N more each."""
    core = 1 << (ranks.bit_length() - 1)
    within = 2 * size * (core - 1) / core
    extra = ranks - core
    return [within + size * (rank < extra) for rank in range(core)] + [size] * extra


SENT: Mapping[str, Callable[[int, int], Sequence[float]]] = {
    "naive": naive,
    "ring": ring,
    "halving_doubling": halving_doubling,
}
"""Algorithm of all_reduce -> (bytes, ranks) -> what each rank sends, in bytes."""
