"""Show where steps' time went: a table, a rank a row, and what it means; a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean
from typing import Any

from rich.console import Console

from dream.stall.phases import Phase
from dream.tools.profile.spans import RankProfile
from dream.tools.profile.split import MOVING, NOTABLE, PARTS, WAITING, RankSplit, split, stragglers
from dream.tools.tables import note, table

_HEADERS = {MOVING: "moving\nbytes", Phase.OPTIMIZER: "opti-\nmizer", WAITING: "wait-\ning",
            Phase.BACKWARD: "back-\nward", Phase.STEP: "com-\nputing"}  # fmt: skip


def show(profiles: Sequence[RankProfile], console: Console) -> None:
    """Print everything on `console`."""
    rows = split(profiles)
    shown = [part for part in PARTS if any(row.parts.get(part) for row in rows)]
    headers = [_HEADERS.get(part, str(part)) for part in shown]
    made = table("rank", "step\nms", *headers, words=(), gap=2)
    for row in rows:
        parts = [f"{1e3 * row.parts.get(part, 0.0):.2f}" for part in shown]
        made.add_row(str(row.rank), f"{1e3 * row.seconds:.2f}", *parts)
    shares = [f"{mean(_share(row, part) for row in rows):.0%}" for part in shown]
    made.add_section()
    made.add_row("", "", *shares)
    console.print(made)
    first = profiles[0]
    over = f" over {first.reduction}" if first.reduction and len(profiles) > 1 else ""
    note(console, f"{first.framework}, {first.strategy}{over}: milliseconds of a step, the mean of "
         f"{first.steps}; input is what the loop waits for.")  # fmt: skip
    for sentence in waits(profiles):
        note(console, sentence, "bold")
    note(console, cost(profiles))


def _share(row: RankSplit, part: str) -> float:
    return row.parts.get(part, 0.0) / row.seconds if row.seconds else 0.0


def waits(profiles: Sequence[RankProfile]) -> list[str]:
    """Say who was waited for for more than a fifth of a step."""
    step = mean(one.seconds for one in profiles)
    return [
        f"Rank {one.rank} is waited for: {1e3 * longest:.1f} ms of each step "
        f"({longest / step:.0%}), while it is in {one.phase}."
        for one in stragglers(profiles)
        if step and (longest := max(one.waited.values())) > NOTABLE * step
    ]


def cost(profiles: Sequence[RankProfile]) -> str:
    """Say what recording itself took, as it was estimated in each rank."""
    own = mean(one.own_seconds for one in profiles)
    step = mean(one.seconds for one in profiles)
    return f"Recording took {1e6 * own:.0f} us of a step ({own / step:.2%}), by estimate."


def document(profiles: Sequence[RankProfile]) -> dict[str, Any]:
    """Return every figure, for programs. Times are in seconds of a step, the mean."""
    first = profiles[0]
    return {
        "framework": first.framework,
        "strategy": first.strategy,
        "reduction": first.reduction,
        "steps": first.steps,
        "own_seconds": mean(one.own_seconds for one in profiles),
        "ranks": [
            {
                "rank": row.rank,
                "step_seconds": row.seconds,
                "parts": {str(part): row.parts.get(part, 0.0) for part in PARTS},
                "waits_for": {str(rank): seconds for rank, seconds in row.waits.items()},
            }
            for row in split(profiles)
        ],
        "waited_for": [
            {"rank": one.rank, "seconds": one.seconds, "phase": str(one.phase)}
            for one in stragglers(profiles)
        ],
    }


_STEPS, _PHASES, _CALLS = 0, 1, 2
_ROWS = {_STEPS: "steps", _PHASES: "phases", _CALLS: "waiting and moving bytes"}


def trace(profiles: Sequence[RankProfile]) -> dict[str, Any]:
    """Return the trace. Times are in microseconds from the first step's begin."""
    start = min((one.bounds[0] for one in profiles if one.bounds), default=0.0)
    events = [event for one in profiles for event in _events(one, start)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(one: RankProfile, start: float) -> list[dict[str, Any]]:
    def event(row: int, name: str, begin: float, end: float) -> dict[str, Any]:
        return {"ph": "X", "pid": one.rank, "tid": row, "name": name, "cat": _ROWS[row],
                "ts": round(1e6 * (begin - start), 3),
                "dur": round(1e6 * (end - begin), 3)}  # fmt: skip

    named = [_label(one.rank, None, "process_name", f"rank {one.rank}")]
    named += [_label(one.rank, row, "thread_name", words) for row, words in _ROWS.items()]
    steps = [
        event(_STEPS, f"step {number}", begin, end)
        for number, (begin, end) in enumerate(pairwise(one.bounds))
    ]
    spans = [event(_PHASES, span.phase, max(span.begin, start), span.end) for span in one.spans]
    calls = [event(_CALLS, call.name, call.begin, call.end) for call in one.calls]
    return [*named, *steps, *spans, *calls]


def _label(rank: int, row: int | None, kind: str, words: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": row or 0, "name": kind, "args": {"name": words}}
