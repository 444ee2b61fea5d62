"""What the operations of a step take by themselves, on tensors of their shapes.

Each is made again and again for a few milliseconds. What it needs was used just now, and is in the
caches as far as it fits: in a step too most of it was made just before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from dream.adapters.pytorch.tools.planning.calls import rebuilt, size_of

_BLOCK, _BLOCKS = 1e-3, 7
"""Seconds of a block, at least, and how many the quickest is of: two threads that wait for each
other are held up for long by whatever else runs."""
_MOST = 1 << 30
"""Bytes of tensors that one may be given."""


@torch.no_grad()
def seconds(calls: Sequence[str]) -> list[float | None]:
    """Of each; None for what cannot be made here."""
    return [_of(call) for call in calls]


def _of(call: str) -> float | None:
    if not call or size_of(call) > _MOST:
        return None
    operation, args, named = rebuilt(call)

    def again() -> None:
        operation(*args, **named)

    try:
        again()
    except (RuntimeError, IndexError, ValueError):  # values that it does not take
        return None
    calls = max(1, int(_BLOCK / max(1e-7, _timed(again, 1))))
    return min(_timed(again, calls) for _ in range(_BLOCKS))


def _timed(call: Callable[[], None], times: int) -> float:
    begin = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - begin) / times
