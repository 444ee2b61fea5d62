"""How long a wait has lasted, less the time in which this process was itself stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

SLICE = 0.5
"""Seconds between two looks of a wait that sleeps in the system."""

_LONGEST = 1.0


@final
class Patience:
    """Of one wait. It is to be looked at often: a look adds the time since the last one, and a
    second at most, so a suspended machine or a stopped process does not wait while it stands."""

    def __init__(
        self,
        seconds: float,
        *,
        longest: float = _LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """seconds: how long to wait. longest: what a look adds at most."""
        self.seconds, self.passed = seconds, 0.0
        self._longest, self._clock = longest, clock
        self._looked = clock()

    def over(self) -> bool:
        """Look: whether all of it has passed."""
        now = self._clock()
        self.passed += min(now - self._looked, self._longest)
        self._looked = now
        return self.passed > self.seconds

    def restart(self) -> None:
        """What is waited for has come nearer."""
        self.passed, self._looked = 0.0, self._clock()

    @property
    def slice(self) -> float:
        """Seconds to sleep before the next look."""
        return max(0.001, min(SLICE, self.seconds - self.passed))
