"""Where the time of steps went, and who waited for whom. Pure: from what ranks recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dream.stall.phases import Phase
from dream.tools.profile.spans import CollectiveCall, RankProfile, Span

WAITING, MOVING, REST = "waiting", "moving bytes", "the rest"
PARTS = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP, WAITING, MOVING, Phase.OPTIMIZER, REST,
)  # fmt: skip
"""In the order in which they are shown."""
NOTABLE = 0.2
"""Share of a step above which a wait for one rank is worth a line."""


@dataclass(frozen=True, slots=True)
class MeanWait:
    """Seconds of a step, the mean, that ranks together waited for one. waited: by rank. phase: in
    which that rank spends most more than those that wait, between one call and the next."""

    rank: int
    seconds: float
    waited: dict[int, float]
    phase: str


@dataclass(frozen=True, slots=True)
class RankSplit:
    """Seconds of a step, the mean. parts: by what they went to, which add up to the whole."""

    rank: int
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    waits: dict[int, float] = field(default_factory=dict)
    """By the rank that was waited for."""


def split(profiles: Sequence[RankProfile]) -> list[RankSplit]:
    """Split each rank's step. Calls are those of all ranks where they were made alike; else what is
    spent in them counts as moving bytes."""
    late = _latest(profiles)
    return [_split(one, late) for one in profiles]


def stragglers(profiles: Sequence[RankProfile]) -> list[MeanWait]:
    """Tell who was waited for, the longest first."""
    late = _latest(profiles)
    waited: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    phases: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_rank = {one.rank: one for one in profiles}
    for one in profiles:
        for index, call in enumerate(one.calls):
            if index >= len(late):
                break
            rank, begin = late[index]
            wait = _waited(call, begin)
            if rank == one.rank or not wait:
                continue
            waited[rank][one.rank] += wait / max(1, one.steps)
            mine, other = _before(one, index), _before(by_rank[rank], index)
            for phase, seconds in other.items():
                phases[rank][phase] += max(0.0, seconds - mine.get(phase, 0.0))
    found = [
        MeanWait(rank, sum(by.values()), dict(by),
             max(phases[rank], key=lambda phase: phases[rank][phase], default=Phase.OWN))
        for rank, by in waited.items()
    ]  # fmt: skip
    return sorted(found, key=lambda wait: -wait.seconds)


def _latest(profiles: Sequence[RankProfile]) -> list[tuple[int, float]]:
    """For each call that all made alike: who came last, and when."""
    found = []
    for calls in zip(*(one.calls for one in profiles), strict=False):
        if len({call.name for call in calls}) > 1:
            break
        begin, rank = max((call.begin, one.rank) for call, one in zip(calls, profiles, strict=True))
        found.append((rank, begin))
    return found


def _waited(call: CollectiveCall, latest: float) -> float:
    return max(0.0, min(latest, call.end) - call.begin)


def _split(one: RankProfile, late: Sequence[tuple[int, float]]) -> RankSplit:
    parts: dict[str, float] = defaultdict(float)
    waits: dict[int, float] = defaultdict(float)
    steps = max(1, one.steps)
    last = one.bounds[-1] if one.bounds else 0.0
    inside: dict[int, float] = defaultdict(float)
    places = _places(one.spans, one.calls)
    for index, call in enumerate(one.calls):
        if call.end > last:
            continue
        wait = 0.0
        if index < len(late):
            rank, begin = late[index]
            wait = _waited(call, begin)
            if wait and rank != one.rank:
                waits[rank] += wait / steps
        parts[WAITING] += wait / steps
        parts[MOVING] += (call.end - call.begin - wait) / steps
        if places[index] is not None:
            inside[places[index] or 0] += call.end - call.begin
    for index, span in enumerate(one.spans):
        begin = max(span.begin, one.bounds[0]) if one.bounds else span.begin
        if span.end <= last:
            parts[span.phase] += max(0.0, span.end - begin - inside[index]) / steps
    parts[REST] = max(0.0, one.seconds - sum(parts.values()))
    return RankSplit(one.rank, one.seconds, dict(parts), dict(waits))


def _places(spans: Sequence[Span], calls: Sequence[CollectiveCall]) -> list[int | None]:
    """For each call, the span that it is in; both are in the order in which they ended."""
    found: list[int | None] = []
    at = 0
    for call in calls:
        while at < len(spans) and spans[at].end < call.end:
            at += 1
        holds = at < len(spans) and spans[at].begin <= call.begin
        found.append(at if holds else None)
    return found


def _before(one: RankProfile, index: int) -> dict[str, float]:
    """Return the seconds of each phase since the call before this one."""
    begin = one.calls[index - 1].end if index else one.bounds[0]
    return _within(one.spans, begin, one.calls[index].begin)


def _within(spans: Sequence[Span], begin: float, end: float) -> dict[str, float]:
    """Return the seconds of each phase between two times; what is in none is the rest."""
    found: dict[str, float] = defaultdict(float)
    for span in spans:
        common = min(span.end, end) - max(span.begin, begin)
        if common > 0:
            found[span.phase] += common
    found[REST] += max(0.0, end - begin - sum(found.values()))
    return found
