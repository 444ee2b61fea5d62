"""What a device sends in a step, strategy by strategy: the collectives that dream's adapters
call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal, final

from dream.tools.plan import cost
from dream.tools.plan.candidates import Candidate
from dream.tools.plan.hardware import Hardware
from dream.tools.plan.memory import bytes_of, shards
from dream.tools.plan.sketch import Sketch

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
        return self.count * cost.sent(self.operation, self.size, self.ranks)

    def seconds(self, hardware: Hardware) -> float:
        one = cost.seconds(self.operation, self.size, self.ranks, self.stride, hardware)
        return self.count * one


def traffic(candidate: Candidate, sketch: Sketch) -> list[Message]:
    """Of the device that sends most. sketch: as for `memory`."""
    found = _BY_KIND[candidate.kind](candidate, sketch)
    return [message for message in found if message.ranks > 1 and message.size]


def given(messages: list[Message]) -> dict[str, int]:
    """Bytes of the larger side that go to each collective in a step."""
    found: dict[str, float] = {}
    for message in messages:
        name = message.operation
        found[name] = found.get(name, 0.0) + message.count * message.size
    return {name: round(size) for name, size in found.items()}


def sent(messages: list[Message]) -> int:
    """Bytes in a step."""
    return round(sum(message.sent for message in messages))


def _none(_: Candidate, __: Sketch) -> Iterator[Message]:
    return iter(())


def _mirrored(candidate: Candidate, sketch: Sketch) -> Iterator[Message]:
    yield _summed(bytes_of(sketch.parameters, trained=True) + sketch.told, candidate.devices)
    yield Message("all_reduce", sketch.running, candidate.devices)
    for size in sketch.normalised:
        yield Message("all_reduce", size, candidate.devices)


def normalised(channels: int, itemsize: int) -> tuple[int, int]:
    """Bytes that a BatchNorm over all replicas adds up: in forward the number of samples, sums and
    sums of squares, in float64; in backward two gradients of the model's own dtype."""
    return 8 * (1 + 2 * channels), 2 * channels * itemsize


def _sharded(candidate: Candidate, sketch: Sketch) -> Iterator[Message]:
    """ZeRO's stage 1: gradients are added up everywhere, stepped rows are gathered."""
    ranks = candidate.devices
    yield from _mirrored(candidate, sketch)
    rows = ranks * shards(sketch.parameters, ranks, trained=True)
    yield Message("all_gather", rows, ranks)
    yield Message("all_gather", LENGTH * ranks, ranks)


def _summed(size: float, ranks: int) -> Message:
    buckets = ceil(size / BUCKET)
    return Message("all_reduce", size / buckets, ranks, count=buckets, when="backward")


_BY_KIND: Mapping[str, Callable[[Candidate, Sketch], Iterator[Message]]] = {
    "single": _none,
    "mirrored": _mirrored,
    "sharded": _sharded,
}
