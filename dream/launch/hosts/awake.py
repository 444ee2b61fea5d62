"""A clock by which silence is judged."""

from __future__ import annotations

import threading
import time
from typing import final

_LONGEST_LOOK = 2.0


@final
class AwakeClock:
    """Seconds in which this process ran. It must be looked at once a second or so: where the
    process was stopped in between, or its machine was, the rest of that time does not count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._seconds += min(now - self._looked, _LONGEST_LOOK)
            self._looked = now
            return self._seconds
