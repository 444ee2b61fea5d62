"""What torch's profiler saw, read from the trace that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, final

STEP = "dream.tools.plan.step"
_SIZES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "int": 4}
"""Bytes of a number, by the profiler's name of its dtype."""
_NAMES = {"gloo:recv": "receive"}
_WORK = "gloo:"
"""What gloo's part in the trace begins with; each with the tensors that a rank gave to it."""


@final
@dataclass(frozen=True, slots=True)
class Seen:
    """peaks: bytes of tensors at most, step by step; given: to each collective, bytes, in the last
    step."""

    peaks: list[int]
    given: dict[str, int]


def read(path: Path) -> Seen:
    events = json.loads(path.read_text())["traceEvents"]
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == STEP)
    begin, end = steps[-1]
    given: dict[str, int] = {}
    for event in events:
        name = str(event.get("name"))
        if name.startswith(_WORK) and begin <= event["ts"] <= end:
            operation = _NAMES.get(name, name.removeprefix(_WORK))
            given[operation] = given.get(operation, 0) + _bytes(event["args"])
    return Seen([_peak(events, *step) for step in steps], given)


def _peak(events: Iterable[Mapping[str, Any]], begin: float, end: float) -> int:
    """By address: what another thread lets go may be noted after its place is given again."""
    memory = sorted(
        (e["ts"], e["args"]["Ev Idx"], e["args"]["Addr"], e["args"]["Bytes"])
        for e in events
        if e.get("name") == "[memory]"
    )
    there: dict[int, int] = {}
    held = most = 0
    for at, _, address, change in memory:
        if at > end:
            break
        if at >= begin:
            most = max(most, held)
        held -= there.pop(address, 0)
        if change > 0:
            there[address] = change
            held += change
        if at >= begin:
            most = max(most, held)
    return most


def _bytes(args: Mapping[str, Any]) -> int:
    """Of all tensors that were given."""
    kinds, dims = args.get("Input type", []), args.get("Input Dims", [])
    return sum(prod(d) * _SIZES[kind] for kind, d in zip(kinds, dims, strict=True) if kind)
