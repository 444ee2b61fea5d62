"""All that is foretold of one strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import final

from dream._errors import ConfigurationError, Unsupported
from dream.tools.plan.candidates import Candidate
from dream.tools.plan.hardware import Hardware
from dream.tools.plan.memory import Memory, memory
from dream.tools.plan.rehearsed import Rehearsals, memory_of, messages_of, time_of
from dream.tools.plan.sketch import Op, Sketch
from dream.tools.plan.timing import Time, time
from dream.tools.plan.traffic import Message, given, sent, traffic


@final
@dataclass(frozen=True, slots=True)
class Source:
    """What is told of a model. sketched: a number of samples -> a step on one device with so many.
    rehearsed: a candidate and a share's samples -> its step by its own code; None for what is
    reckoned from a sketch. Raises what the strategy raises on such a model."""

    sketched: Callable[[int], Sketch]
    rehearsed: Callable[[Candidate, int], Rehearsals | None]


@final
@dataclass(frozen=True, slots=True)
class Forecast:
    """sent: bytes that a device sends in a step; given: to each collective. batch: the global one.
    limit: bytes that a device has, or None. sources: of the figures that times rest on."""

    candidate: Candidate
    memory: Memory
    sent: int
    given: Mapping[str, int]
    time: Time
    batch: int
    limit: int | None
    sources: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.limit is None or self.memory.peak <= self.limit

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.time.step


def ops_of(candidates: Iterable[Candidate], source: Source, batch: int) -> Iterator[Op]:
    """The operations of all of them that there are. batch: the global one."""
    for one in candidates:
        try:
            told = source.rehearsed(one, ceil(batch / one.shares))
        except (Unsupported, ConfigurationError):
            continue  # said when it is foretold
        if told is None:
            yield from source.sketched(share_of(one, batch)).ops
        else:
            yield from (op for rehearsal in told for op in rehearsal.ops)


def share_of(candidate: Candidate, batch: int) -> int:
    """Samples that a device works on at a time: the largest share of a batch."""
    return ceil(ceil(batch / candidate.shares) / candidate.microbatches)


def forecast(
    candidate: Candidate,
    source: Source,
    batch: int,
    hardware: Hardware,
    dtype: str,
    limit: int | None,
) -> Forecast:
    """batch: the global one."""
    hardware = hardware.under(candidate.strategy)
    told = source.rehearsed(candidate, ceil(batch / candidate.shares))
    needs, messages, takes = (
        _reckoned(candidate, source.sketched(share_of(candidate, batch)), hardware, dtype)
        if told is None
        else (
            memory_of(told),
            messages_of(candidate, told),
            time_of(candidate, told, hardware, dtype),
        )
    )
    return Forecast(
        candidate,
        needs,
        sent(messages),
        given(messages),
        takes,
        batch,
        limit,
        hardware.sources,
    )


def _reckoned(
    candidate: Candidate, sketch: Sketch, hardware: Hardware, dtype: str
) -> tuple[Memory, list[Message], Time]:
    messages = traffic(candidate, sketch)
    takes = time(candidate, sketch, messages, hardware, dtype)
    return memory(candidate, sketch), messages, takes
