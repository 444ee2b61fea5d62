"""Seconds of a step: computing by the roofline of each operation, sending by latency and
bandwidth, and what of the one hides behind the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from dream.tools.plan.candidates import Candidate
from dream.tools.plan.hardware import Hardware
from dream.tools.plan.memory import bytes_of, shards
from dream.tools.plan.sketch import Phase, Sketch
from dream.tools.plan.traffic import Message


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
    pages = paged(max(sketch.forward_peak, sketch.backward_peak), sketch.largest, hardware)
    forward = _seconds(sketch, "forward", hardware, dtype)
    backward = _seconds(sketch, "backward", hardware, dtype)
    update = _seconds(sketch, "update", hardware, dtype, _stepped(candidate, sketch))
    sending = (
        shown(messages, "forward", forward, hardware)
        + shown(messages, "backward", backward, hardware)
        + shown(messages, "alone", 0.0, hardware)
    )
    return Time(forward + backward + update + pages, sending)


def paged(peak: int, largest: int, hardware: Hardware) -> float:
    """Seconds for memory that a CPU's process gives back at the end of a step and must be given
    anew: glibc keeps twice the largest block that there was (mallopt(3), M_TRIM_THRESHOLD)."""
    return hardware.fresh * max(0, peak - 2 * largest)


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
    return 1.0


def shown(
    messages: Iterable[Message],
    when: str,
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
