"""What collectives take: latency and bandwidth (alpha and beta).

A message of n bytes takes alpha + n / bandwidth (Hockney, Parallel Computing 20(3), 1994). The
algorithms are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 19(1), 2005; that a ring's bytes are the fewest there can be is
Patarasuk and Yuan, JPDC 69(2), 2009. P: ranks; N: bytes of the larger side, as in
dream.tools.collectives.cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log2

from dream.tools.collectives.cost import FACTORS
from dream.tools.plan.hardware import Hardware, Link


def ring_all_reduce(size: float, ranks: int, link: Link) -> float:
    """A ring: 2(P-1) messages of N/P. Seconds: 2(P-1) alpha + 2(P-1)/P N / bandwidth."""
    messages = 2 * (ranks - 1)
    return messages * link.latency + messages / ranks * size / link.bandwidth


def tree_all_reduce(size: float, ranks: int, link: Link) -> float:
    """Two binary trees, each for half of the bytes, up and down in a pipeline, as NCCL has them
    (Sanders, Speck, Traeff, Parallel Computing 35(12), 2009). Seconds: 2 log2(P) alpha + 2N /
    bandwidth."""
    if ranks < 2:
        return 0.0
    return 2 * ceil(log2(ranks)) * link.latency + 2 * size / link.bandwidth


def ring_gather(size: float, ranks: int, link: Link) -> float:
    """all_gather, and reduce_scatter in reverse: P-1 messages of N/P round a ring. Seconds:
    (P-1) alpha + (P-1)/P N / bandwidth."""
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


def point_to_point(size: float, link: Link) -> float:
    """A message to a neighbour. Seconds: alpha + N / bandwidth."""
    return link.latency + size / link.bandwidth


def _all_reduce(size: float, ranks: int, inside: int, hardware: Hardware) -> float:
    """The faster of ring and trees, as NCCL takes it. Across hosts: added up within each,
    between the hosts by each device for its part, and gathered within each again (hierarchical:
    Jia et al., arXiv:1807.11205, section 3.3)."""
    if ranks <= inside:
        return _fastest(size, ranks, hardware.near)
    hosts = ceil(ranks / inside)
    within = 2 * ring_gather(size, inside, hardware.near)
    return within + _fastest(size / inside, hosts, hardware.far)


def _fastest(size: float, ranks: int, link: Link) -> float:
    return min(ring_all_reduce(size, ranks, link), tree_all_reduce(size, ranks, link))


def _gather(size: float, ranks: int, inside: int, hardware: Hardware) -> float:
    """Across hosts: each device gathers its counterparts' parts, then the host's devices theirs."""
    if ranks <= inside:
        return ring_gather(size, ranks, hardware.near)
    hosts = ceil(ranks / inside)
    between = ring_gather(size / inside, hosts, hardware.far)
    return between + ring_gather(size, inside, hardware.near)


def _send(size: float, ranks: int, inside: int, hardware: Hardware) -> float:
    """The slowest of the links between neighbours."""
    return point_to_point(size, hardware.near if ranks <= inside else hardware.far)


SECONDS: Mapping[str, Callable[[float, int, int, Hardware], float]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gather,
    "reduce_scatter": _gather,
    "broadcast": _gather,
    "all_to_all": _gather,
    "send": _send,
    "receive": _send,
}
"""Operation -> (bytes, ranks, how many of them share a host, hardware) -> seconds, the call itself
not counted."""


def seconds(operation: str, size: float, ranks: int, stride: int, hardware: Hardware) -> float:
    """One call among `ranks` ranks that are `stride` apart."""
    if ranks < 2:
        return 0.0
    inside = min(ranks, max(1, hardware.per_host // stride))
    return hardware.call + SECONDS[operation](size, ranks, inside, hardware)


def sent(operation: str, size: float, ranks: int) -> float:
    """Bytes that a rank sends in one call by a ring, the fewest there can be."""
    if ranks < 2 or operation == "receive":
        return 0.0
    return size if operation == "send" else size * FACTORS[operation](ranks)
