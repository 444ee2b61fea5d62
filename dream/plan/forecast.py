"""All that is foretold of one strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import final

from .candidates import Candidate
from .hardware import Hardware
from .memory import Memory, memory
from .sketch import Sketch
from .timing import Time, time
from .traffic import given, sent, traffic

Sketched = Callable[[int], Sketch]
"""A number of samples -> a step on one device with so many."""


@final
@dataclass(frozen=True, slots=True)
class Forecast:
    """sent: bytes that a device sends in a step; given: to each collective. batch: the global one.
    limit: bytes that a device has, or None."""

    candidate: Candidate
    memory: Memory
    sent: int
    given: Mapping[str, int]
    time: Time
    batch: int
    limit: int | None

    @property
    def fits(self) -> bool:
        return self.limit is None or self.memory.peak <= self.limit

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.time.step


def share_of(candidate: Candidate, batch: int) -> int:
    """Samples that a device works on at a time: the largest share of a batch."""
    return ceil(ceil(batch / candidate.shares) / candidate.microbatches)


def forecast(
    candidate: Candidate,
    sketched: Sketched,
    batch: int,
    hardware: Hardware,
    dtype: str,
    limit: int | None,
) -> Forecast:
    """batch: the global one."""
    sketch = sketched(share_of(candidate, batch))
    messages = traffic(candidate, sketch)
    return Forecast(
        candidate,
        memory(candidate, sketch),
        sent(messages),
        given(messages),
        time(candidate, sketch, messages, hardware, dtype),
        batch,
        limit,
    )
