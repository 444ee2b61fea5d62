"""A trace for chrome://tracing and Perfetto: a process a rank, its phases and its calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dream.tools.profile.spans import RankProfile

_STEPS, _PHASES, _CALLS = 0, 1, 2
_ROWS = {_STEPS: "steps", _PHASES: "phases", _CALLS: "waiting and moving bytes"}


def document(profiles: Sequence[RankProfile]) -> dict[str, Any]:
    """Return the trace. Times are in microseconds from the first step's begin."""
    start = min((one.bounds[0] for one in profiles if one.bounds), default=0.0)
    events = [event for one in profiles for event in _of(one, start)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of(one: RankProfile, start: float) -> list[dict[str, Any]]:
    def event(row: int, name: str, begin: float, end: float) -> dict[str, Any]:
        return {"ph": "X", "pid": one.rank, "tid": row, "name": name, "cat": _ROWS[row],
                "ts": round(1e6 * (begin - start), 3),
                "dur": round(1e6 * (end - begin), 3)}  # fmt: skip

    named = [_name(one.rank, None, "process_name", f"rank {one.rank}")]
    named += [_name(one.rank, row, "thread_name", words) for row, words in _ROWS.items()]
    steps = [
        event(_STEPS, f"step {number}", begin, end)
        for number, (begin, end) in enumerate(pairwise(one.bounds))
    ]
    spans = [event(_PHASES, span.phase, max(span.begin, start), span.end) for span in one.spans]
    calls = [event(_CALLS, call.name, call.begin, call.end) for call in one.calls]
    return [*named, *steps, *spans, *calls]


def _name(rank: int, row: int | None, kind: str, words: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": row or 0, "name": kind, "args": {"name": words}}
