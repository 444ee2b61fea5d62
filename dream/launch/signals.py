"""Signals that end a job, as somebody takes them who waits for other things too."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def heard(put: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Hand over each signal that comes in the block, SIGHUP as far as nohup does not forbid it.
    put: a SimpleQueue's, say, which may be called at any point."""

    def take(number: int, frame: FrameType | None) -> None:
        del frame
        put(signal.Signals(number))

    unheard = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [number for number in _STOPPING if number != signal.SIGHUP or not unheard]
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
