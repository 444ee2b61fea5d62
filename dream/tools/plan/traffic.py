"""Bytes that each device holds and sends, strategy by strategy, and what sending takes.

What dream's adapters hold and call, not what could be: where every device has the whole model; what
splits it is rehearsed. ZeRO's stages: Rajbhandari et al., SC 2020, arXiv:1910.02054.

A message of n bytes takes alpha + n / bandwidth (Hockney, Parallel Computing 20(3), 1994). The
algorithms are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 19(1), 2005; that a ring's bytes are the fewest there can be is
Patarasuk and Yuan, JPDC 69(2), 2009. P: ranks; N: bytes of the larger side, as in
dream.tools.collectives.figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Literal, final

from dream.tools.collectives.figures import FACTORS
from dream.tools.plan.hardware import Hardware, NetworkLink
from dream.tools.plan.sketch import Candidate, Sketch, SketchedParameter


def ring_all_reduce(size: float, ranks: int, link: NetworkLink) -> float:
    """Return the seconds of a ring, 2(P-1) messages of N/P: 2(P-1) alpha + 2(P-1)/P N /
    bandwidth."""
    messages = 2 * (ranks - 1)
    return messages * link.latency + messages / ranks * size / link.bandwidth


def tree_all_reduce(size: float, ranks: int, link: NetworkLink) -> float:
    """Return the seconds of two binary trees, each for half of the bytes, up and down in a
    pipeline, as NCCL has them (Sanders, Speck, Traeff, Parallel Computing 35(12), 2009): 2 log2(P)
    alpha + 2N / bandwidth."""
    if ranks < 2:
        return 0.0
    return 2 * ceil(log2(ranks)) * link.latency + 2 * size / link.bandwidth


def ring_gather(size: float, ranks: int, link: NetworkLink) -> float:
    """all_gather, and reduce_scatter in reverse: P-1 messages of N/P round a ring. Seconds:
    (P-1) alpha + (P-1)/P N / bandwidth."""
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)


def point_to_point(size: float, link: NetworkLink) -> float:
    """Return the seconds of a message to a neighbour: alpha + N / bandwidth."""
    return link.latency + size / link.bandwidth


def _all_reduce(size: float, ranks: int, inside: int, hardware: Hardware) -> float:
    """Return the faster of ring and trees, as NCCL takes it. Across hosts: added up within each,
    between the hosts by each device for its part, and gathered within each again (hierarchical:
    Jia et al., arXiv:1807.11205, section 3.3)."""
    if ranks <= inside:
        return _fastest(size, ranks, hardware.near)
    hosts = ceil(ranks / inside)
    within = 2 * ring_gather(size, inside, hardware.near)
    return within + _fastest(size / inside, hosts, hardware.far)


def _fastest(size: float, ranks: int, link: NetworkLink) -> float:
    return min(ring_all_reduce(size, ranks, link), tree_all_reduce(size, ranks, link))


def _gather(size: float, ranks: int, inside: int, hardware: Hardware) -> float:
    """Across hosts: each device gathers its counterparts' parts, then the host's devices theirs."""
    if ranks <= inside:
        return ring_gather(size, ranks, hardware.near)
    hosts = ceil(ranks / inside)
    between = ring_gather(size / inside, hosts, hardware.far)
    return between + ring_gather(size, inside, hardware.near)


def _send(size: float, ranks: int, inside: int, hardware: Hardware) -> float:
    """Return the slowest of the links between neighbours."""
    return point_to_point(size, hardware.near if ranks <= inside else hardware.far)


SECONDS: Mapping[str, Callable[[float, int, int, Hardware], float]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gather,
    "reduce_scatter": _gather,
    "broadcast": _gather,
    "all_to_all": _gather,
    "send": _send,
    "receive": _send,
    "copy": lambda size, _, __, hardware: point_to_point(size, hardware.host_link),
}
"""Operation -> (bytes, ranks, how many of them share a host, hardware) -> seconds, the call itself
not counted. A copy is between a device and its host."""


def seconds(operation: str, size: float, ranks: int, stride: int, hardware: Hardware) -> float:
    """One call among `ranks` ranks that are `stride` apart."""
    if ranks < 2:
        return 0.0
    inside = min(ranks, max(1, hardware.per_host // stride))
    return hardware.call + SECONDS[operation](size, ranks, inside, hardware)


def bytes_sent(operation: str, size: float, ranks: int) -> float:
    """Return the bytes that a rank sends in one call by a ring, the fewest there can be."""
    if ranks < 2 or operation == "receive":
        return 0.0
    return size if operation == "send" else size * FACTORS[operation](ranks)


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """What lies in a device's memory. activations: what a step needs beside the others when it
    needs most, the batch included. parameters count buffers, and what is gathered for a while.
    host: what of the device's share lies on its host."""

    parameters: int
    gradients: int
    state: int
    activations: int
    peak: int
    host: int = 0


def memory(candidate: Candidate, sketch: Sketch) -> Memory:
    """sketch: of the samples that a device works on."""
    return _MEMORY[candidate.kind](candidate, sketch)


def bytes_of(parameters: Iterable[SketchedParameter], *, trained: bool = False) -> int:
    """trained: only of those that are."""
    return sum(p.size for p in parameters if p.trained or not trained)


def _single_memory(_: Candidate, sketch: Sketch) -> Memory:
    held = bytes_of(sketch.parameters) + sketch.buffers
    gradients = bytes_of(sketch.parameters, trained=True)
    most = max(sketch.forward_peak, sketch.joint_peak, gradients + sketch.update_peak)
    return Memory(held, gradients, sketch.state, _activations(sketch), held + sketch.state + most)


def _mirrored_memory(_: Candidate, sketch: Sketch) -> Memory:
    """Gradients stay in DDP's buckets from step to step."""
    held = bytes_of(sketch.parameters) + sketch.buffers
    gradients = bytes_of(sketch.parameters, trained=True)
    activations = max(_activations(sketch), sketch.update_peak)
    peak = held + gradients + sketch.state + activations
    return Memory(held, gradients, sketch.state, _activations(sketch), peak)


def _sharded_memory(candidate: Candidate, sketch: Sketch) -> Memory:
    """ZeRO's stage 1: replicas, each with a part of the state, which spread the rows they step."""
    parts = candidate.mesh.model
    gradients = bytes_of(sketch.parameters, trained=True)
    state = ceil(sketch.state / parts)
    update = sketch.left + (sketch.update_peak - sketch.left) // parts
    rows = shards(sketch.parameters, parts, trained=True)
    spread = sketch.left + (3 + 2 * parts) * rows  # as they are joined, sent and taken
    held = bytes_of(sketch.parameters) + sketch.buffers
    most = max(_activations(sketch), update, spread)
    return Memory(held, gradients, state, _activations(sketch), held + gradients + state + most)


def _activations(sketch: Sketch) -> int:
    return max(sketch.forward_peak, sketch.backward_peak)


def shards(parameters: Iterable[SketchedParameter], parts: int, *, trained: bool = False) -> int:
    """Return each parameter's first dim in equal parts, the largest of them."""
    return sum(
        ceil(p.rows / parts) * (p.size // max(1, p.rows))
        for p in parameters
        if p.trained or not trained
    )


_MEMORY: Mapping[str, Callable[[Candidate, Sketch], Memory]] = {
    "single": _single_memory,
    "mirrored": _mirrored_memory,
    "sharded": _sharded_memory,
}

LENGTH = 8
"""Bytes: what ranks say of how much each gives to an all_gather."""
BUCKET = 25 << 20
"""Bytes: torch's DistributedDataParallel fills buckets of 25 MiB."""


@final
@dataclass(frozen=True, slots=True)
class Message:
    """`count` calls of one size. size: bytes of the larger side. ranks: of the group, `stride`
    apart. when: what it may travel behind; "alone" for what everybody waits for."""

    operation: str
    size: float
    ranks: int
    stride: int = 1
    count: int = 1
    when: Literal["forward", "backward", "alone"] = "alone"

    @property
    def sent(self) -> float:
        """Bytes that the device sends."""
        return self.count * bytes_sent(self.operation, self.size, self.ranks)

    def seconds(self, hardware: Hardware) -> float:
        one = seconds(self.operation, self.size, self.ranks, self.stride, hardware)
        return self.count * one


def traffic(candidate: Candidate, sketch: Sketch) -> list[Message]:
    """Of the device that sends most. sketch: as for `memory`."""
    found = _TRAFFIC[candidate.kind](candidate, sketch)
    return [message for message in found if message.ranks > 1 and message.size]


def given(messages: list[Message]) -> dict[str, int]:
    """Return the bytes of the larger side that go to each collective in a step."""
    found: dict[str, float] = {}
    for message in messages:
        name = message.operation
        found[name] = found.get(name, 0.0) + message.count * message.size
    return {name: round(size) for name, size in found.items()}


def sent(messages: list[Message]) -> int:
    """Return the bytes in a step."""
    return round(sum(message.sent for message in messages))


def _no_traffic(_: Candidate, __: Sketch) -> Iterator[Message]:
    return iter(())


def _mirrored_traffic(candidate: Candidate, sketch: Sketch) -> Iterator[Message]:
    yield _summed(bytes_of(sketch.parameters, trained=True) + sketch.told, candidate.devices)
    yield Message("all_reduce", sketch.running, candidate.devices)
    for size in sketch.normalised:
        yield Message("all_reduce", size, candidate.devices)


def normalised(channels: int, itemsize: int) -> tuple[int, int]:
    """Return the bytes that a BatchNorm over all replicas adds up: in forward the number of
    samples, sums and sums of squares, in float64; in backward two gradients of the model's own
    dtype."""
    return 8 * (1 + 2 * channels), 2 * channels * itemsize


def _sharded_traffic(candidate: Candidate, sketch: Sketch) -> Iterator[Message]:
    """ZeRO's stage 1: gradients are added up everywhere, stepped rows are gathered."""
    ranks = candidate.devices
    yield from _mirrored_traffic(candidate, sketch)
    rows = ranks * shards(sketch.parameters, ranks, trained=True)
    yield Message("all_gather", rows, ranks)
    yield Message("all_gather", LENGTH * ranks, ranks)


def _summed(size: float, ranks: int) -> Message:
    buckets = ceil(size / BUCKET)
    return Message("all_reduce", size / buckets, ranks, count=buckets, when="backward")


_TRAFFIC: Mapping[str, Callable[[Candidate, Sketch], Iterator[Message]]] = {
    "single": _no_traffic,
    "mirrored": _mirrored_traffic,
    "sharded": _sharded_traffic,
}
