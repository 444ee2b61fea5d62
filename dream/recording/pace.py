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
    of a machine share; sent: bytes over sockets, at the first step and at the end, None where
    nobody counts; entered_bytes: resident when the first block was entered; peak_bytes: the most
    ever."""

    first_step: float = 0.0
    clocks: Sequence[float] = ()
    sent: Sequence[int | None] = (None, None)
    entered_bytes: int = 0
    peak_bytes: int = 0


@final
class Clock:
    """Makes one."""

    def __init__(self) -> None:
        self._entered = 0
        self._first = 0.0
        self._clocks: list[float] = []
        self._sent: list[int | None] = []

    def entered(self) -> None:
        self._entered = self._entered or _process.resident_bytes()

    def step(self) -> None:
        self._clocks.append(time.monotonic())
        if not self._sent:
            self._first = time.time()
            self._sent.append(_process.bytes_sent())

    def pace(self) -> Pace:
        start = self._sent[0] if self._sent else None
        return Pace(
            self._first, tuple(self._clocks), (start, _process.bytes_sent()), self._entered,
            _process.peak_bytes(),
        )  # fmt: skip
