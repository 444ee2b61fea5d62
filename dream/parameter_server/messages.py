"""What a worker says and hears, as its training sees it."""

from __future__ import annotations

from dataclasses import dataclass

from dream.parameter_server.coordinator import Key
from dream.parameter_server.words import Layout


@dataclass(frozen=True, slots=True)
class Shard:
    """What one server holds. start, stop: its elements in the flat parameters; layout: names and
    shapes, for comparison; recipe: for its `Owner`."""

    start: int
    stop: int
    layout: Layout
    recipe: bytes


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch, or a part of one, that this worker is to do. number: as the coordinator counts;
    index: the batch; part of parts: every parts-th sample of it, beginning at `part`."""

    key: Key
    number: int
    index: int
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class Answer:
    """ended: whether the epoch is done by all; fresh: whether the parameters have changed."""

    lease: Lease | None
    ended: bool
    fresh: bool
    loss: float


@dataclass(frozen=True, slots=True)
class Push:
    """What a step brings. leases: what it is of, the last of which is the batch itself; loss: the
    mean over `weight` things; settings: hyper-parameters, where they have changed; present: as in
    `Owner.step`, all servers' end to end; wants: whether to answer with the next lease."""

    leases: list[Lease]
    loss: float
    weight: float
    settings: bytes | None
    present: list[bytes]
    wants: bool
