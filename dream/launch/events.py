"""What a launcher waits for."""

from __future__ import annotations

import signal
from queue import Empty, SimpleQueue

Event = int | signal.Signals | str | None
"""A rank that ended or told that it does, a signal that came, what a Link tells, or nothing for a
while."""

Events = SimpleQueue[Event]


def next_event(events: Events, timeout: float) -> Event:
    try:
        return events.get(timeout=timeout)
    except Empty:
        return None
