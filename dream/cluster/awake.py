"""Time that counts: silence and waits are judged by how long this process itself ran."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import final

SLICE = 0.5
"""Seconds between two looks of a wait that sleeps in the system."""

_LONGEST_LOOK = 2.0
_LONGEST_WAIT = 1.0


@final
class AwakeClock:
    """Seconds in which this process ran. It must be looked at once a second or so: a look adds the
    time since the last one, and `longest` at most, so time does not pass where the process was
    stopped in between, or its machine was."""

    def __init__(
        self, longest: float = _LONGEST_LOOK, clock: Callable[[], float] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._longest, self._clock = longest, clock or time.monotonic
        self._looked = self._clock()
        self._seconds = 0.0

    def seconds(self) -> float:
        with self._lock:
            now = self._clock()
            self._seconds += min(now - self._looked, self._longest)
            self._looked = now
            return self._seconds


@final
class Patience:
    """How long one wait may last, by a clock of its own: it is to be looked at often."""

    def __init__(
        self,
        seconds: float,
        *,
        longest: float = _LONGEST_WAIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """seconds: how long to wait. longest: what a look adds at most."""
        self.seconds, self.passed = seconds, 0.0
        self._clock = AwakeClock(longest, clock)
        self._began = 0.0

    def over(self) -> bool:
        """Look: whether all of it has passed."""
        self.passed = self._clock.seconds() - self._began
        return self.passed > self.seconds

    def restart(self) -> None:
        """Begin again: what is waited for has come nearer."""
        self.passed, self._began = 0.0, self._clock.seconds()

    @property
    def slice(self) -> float:
        """Seconds to sleep before the next look."""
        return max(0.001, min(SLICE, self.seconds - self.passed))
