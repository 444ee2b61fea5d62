"""How fast a recorded script goes, and what its process uses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dream import _process


@dataclass(frozen=True, slots=True)
class Pace:
    """first_step: seconds since 1970; clocks: when each step was told of, by a clock that all ranks
    of a machine share; sent: bytes over sockets in a step, the mean, None where nobody counts or
    there was but one; entered_bytes: resident when the first block was entered; peak_bytes: the
    most ever."""

    first_step: float = 0.0
    clocks: Sequence[float] = ()
    sent: float | None = None
    entered_bytes: int = 0
    peak_bytes: int = 0


@final
class Clock:
    """Makes one."""

    def __init__(self) -> None:
        self._entered = 0
        self._first = 0.0
        self._clocks: list[float] = []
        self._sent: dict[int, int | None] = {}
        """By step: between two of them lies what so many steps send, wherever in a step it is told
        of, and nothing of what comes before the training or behind it."""

    def entered(self) -> None:
        self._entered = self._entered or _process.resident_bytes()

    def step(self) -> None:
        self._clocks.append(time.monotonic())
        done = len(self._clocks)
        self._first = self._first or time.time()
        if done & (done - 1) == 0:  # 1, 2, 4, ...: to look takes a while
            self._sent[done] = _process.bytes_sent()

    def pace(self) -> Pace:
        """Until now."""
        return Pace(
            self._first, tuple(self._clocks), self._each(), self._entered, _process.peak_bytes()
        )

    def _each(self) -> float | None:
        last = max(self._sent, default=1)
        before, after = self._sent.get(1), self._sent.get(last)
        return (
            None if before is None or after is None or last == 1 else (after - before) / (last - 1)
        )
