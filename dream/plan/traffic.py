"""What a device sends in a step, strategy by strategy: the collectives that dream's adapters
call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal, final

from . import cost
from .candidates import Candidate
from .hardware import Hardware
from .memory import bytes_of, divided, gathered_alone, shards, stages, unit_of
from .sketch import Sketch

LOSS = 4
"""Bytes: the mean loss, a float32, travels with the gradients."""
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
    yield _summed(bytes_of(sketch.parameters, trained=True) + LOSS, candidate.devices)
    yield Message("all_reduce", sketch.running, candidate.devices)


def _sharded(candidate: Candidate, sketch: Sketch) -> Iterator[Message]:
    """1: gradients are added up everywhere, stepped rows are gathered. 2: parameters are gathered
    once, gradients reduced to parts. 3: those of units
    are gathered for backward once more."""
    ranks = candidate.devices
    if candidate.zero == 1:
        yield from _mirrored(candidate, sketch)
        rows = ranks * shards(sketch.parameters, ranks, trained=True)
        yield Message("all_gather", rows, ranks)
        yield Message("all_gather", LENGTH * ranks, ranks)
        return
    units = max(1, len(sketch.units))
    held = ranks * shards(sketch.parameters, ranks)
    of, alone = unit_of(sketch), gathered_alone(sketch)
    again = ranks * shards((p for p in sketch.parameters if of(p.layer) in alone), ranks)
    given = ranks * shards(sketch.parameters, ranks, trained=True)
    yield Message("all_gather", held / units, ranks, count=units, when="forward")
    if candidate.zero == 3:
        yield Message("all_gather", again / units, ranks, count=units, when="backward")
    yield Message("reduce_scatter", given / units, ranks, count=units, when="backward")
    yield Message("all_reduce", LOSS, ranks)


def _tensor(candidate: Candidate, sketch: Sketch) -> Iterator[Message]:
    mesh = candidate.mesh
    for cut in sketch.cuts:
        if cut.size % mesh.model == 0:
            yield Message("all_reduce", cut.forward, mesh.model)
            yield Message("all_reduce", cut.backward, mesh.model)
    trained = [p for p in sketch.parameters if p.trained]
    yield Message("all_reduce", divided(sketch, trained, mesh.model), mesh.data, mesh.model)
    yield Message("all_reduce", LOSS, mesh.data, mesh.model)


def _pipeline(candidate: Candidate, sketch: Sketch) -> Iterator[Message]:
    """A stage in the middle sends on what it makes and sends back its input's gradient."""
    mesh, rows = candidate.mesh, stages(sketch, candidate.mesh.model)
    ends = [sketch.units[units[-1]] for units in rows[:-1]]
    sides = [a + b for a, b in zip([0, *ends], [*ends, 0], strict=True)]
    count = candidate.microbatches
    busiest = max(range(len(sides)), key=lambda at: sides[at])
    for size in ([0, *ends][busiest], [*ends, 0][busiest]):
        yield Message("send", size, mesh.model, count=count)
    of = unit_of(sketch)
    held = [
        bytes_of((p for p in sketch.parameters if of(p.layer) in units), trained=True)
        for units in rows
    ]
    yield Message("all_reduce", max(held), mesh.data, mesh.model)


def _summed(size: float, ranks: int) -> Message:
    buckets = ceil(size / BUCKET)
    return Message("all_reduce", size / buckets, ranks, count=buckets, when="backward")


_BY_KIND: Mapping[str, Callable[[Candidate, Sketch], Iterator[Message]]] = {
    "single": _none,
    "mirrored": _mirrored,
    "sharded": _sharded,
    "tensor": _tensor,
    "pipeline": _pipeline,
}
