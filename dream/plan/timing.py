"""Seconds of a step: computing by the roofline of each operation, sending by latency and
bandwidth, and what of the one hides behind the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, final

from .candidates import Candidate
from .hardware import Hardware
from .memory import bytes_of, divided, shards, stages
from .sketch import WHOLE, Op, Phase, Sketch
from .traffic import Message


@final
@dataclass(frozen=True, slots=True)
class Time:
    """communication: what is not hidden; idle: a device's, in a pipeline. All in seconds."""

    compute: float
    communication: float
    idle: float = 0.0

    @property
    def step(self) -> float:
        return self.compute + self.communication + self.idle


def time(
    candidate: Candidate,
    sketch: Sketch,
    messages: Sequence[Message],
    hardware: Hardware,
    dtype: str,
) -> Time:
    """sketch: as for `memory`."""
    parts = candidate.mesh.model if candidate.kind == "tensor" else 1
    forward = _forward(sketch, hardware, dtype, parts)
    backward = _seconds(sketch, "backward", hardware, dtype)
    backward *= forward / (_forward(sketch, hardware, dtype) or 1.0)
    update = _seconds(sketch, "update", hardware, dtype, _stepped(candidate, sketch))
    if candidate.kind == "pipeline":
        return _pipelined(candidate, sketch, messages, hardware, dtype, (backward, update))
    sending = (
        _shown(messages, "forward", forward, hardware)
        + _shown(messages, "backward", backward, hardware)
        + _shown(messages, "alone", 0.0, hardware)
    )
    return Time(forward + backward + update, sending)


def _forward(sketch: Sketch, hardware: Hardware, dtype: str, parts: int = 1) -> float:
    """Where tensor parallelism has so many parts."""

    def share(op: Op) -> float:
        return 1 / parts if op.cut != WHOLE and sketch.cuts[op.cut].size % parts == 0 else 1.0

    forward = (op for op in sketch.ops if op.phase == "forward")
    return sum(hardware.seconds(op, dtype, share(op)) for op in forward)


def _seconds(
    sketch: Sketch, phase: Phase, hardware: Hardware, dtype: str, share: float = 1.0
) -> float:
    return sum(hardware.seconds(op, dtype, share) for op in sketch.ops if op.phase == phase)


def _stepped(candidate: Candidate, sketch: Sketch) -> float:
    """What share of the parameters a device steps."""
    trained = [p for p in sketch.parameters if p.trained]
    whole = max(1, bytes_of(trained))
    if candidate.kind == "sharded":
        return shards(trained, candidate.mesh.model) / whole
    if candidate.kind == "tensor":
        return divided(sketch, trained, candidate.mesh.model) / whole
    return 1.0


def _shown(
    messages: Iterable[Message],
    when: Literal["forward", "backward", "alone"],
    behind: float,
    hardware: Hardware,
) -> float:
    """What cannot hide behind computing: what is longer than it, and the first or last call at
    least, which has nothing to hide behind."""
    mine = [message for message in messages if message.when == when]
    total = sum(message.seconds(hardware) for message in mine)
    if not hardware.overlaps or when == "alone":
        return total
    least = max((message.seconds(hardware) / message.count for message in mine), default=0.0)
    return max(total - behind, least)


def _pipelined(
    candidate: Candidate,
    sketch: Sketch,
    messages: Sequence[Message],
    hardware: Hardware,
    dtype: str,
    backward_update: tuple[float, float],
) -> Time:
    """M microbatches through S stages take as long as M + S - 1 through the slowest: a share of
    (S-1)/(M+S-1) is idle (Huang et al., arXiv:1811.06965, section 2.3; under 1F1B too, Narayanan
    et al., arXiv:2104.04473, section 2.2)."""
    backward, update = backward_update
    parts, count = candidate.mesh.model, candidate.microbatches
    by_unit: dict[str, float] = {}
    for op in sketch.ops:
        if op.phase == "forward":
            by_unit[op.unit] = by_unit.get(op.unit, 0.0) + hardware.seconds(op, dtype)
    forward = sum(by_unit.values()) or 1.0
    slowest = max(sum(by_unit.get(u, 0.0) for u in units) for units in stages(sketch, parts))
    one = slowest * (1 + backward / forward)
    sends = [message for message in messages if message.operation == "send"]
    summed = [message for message in messages if message.operation != "send"]
    passing = sum(m.seconds(hardware) / m.count for m in sends)
    shown = passing * (parts - 1 if hardware.overlaps else count + parts - 1)
    last = sum(message.seconds(hardware) for message in summed)
    return Time(count * one + update / parts, shown + last, (parts - 1) * one)
