"""What a rank tells its launcher, over a pipe of their own. `child.py` is the side that tells."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Report:
    """How a rank ends, told before it does.

    kind: "left", "error" or "victim"; or "thread": one of its threads raised, and it goes on.
    code: its exit code to be. time: seconds since the epoch. text: its traceback.
    came: when it was read, by the monotonic clock.
    """

    kind: str
    code: int
    time: float
    text: str
    came: float


@final
class Reports:
    """The launcher's side of the pipe, read by a thread of its own: a report is known as soon as
    it is there, and nothing is asked for in the meantime."""

    def __init__(self) -> None:
        self._source, self.sink = os.pipe()
        """sink: what the rank inherits."""
        os.set_blocking(self._source, False)
        self._over = False
        self._held = bytearray()
        self._thread: threading.Thread | None = None

    def listen(self, told: Callable[[Report], None]) -> None:
        """Call `told` from a thread, for each."""
        self._thread = threading.Thread(target=self._listen, args=(told,), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The rank has ended: all it told is in the pipe. Return once it has been read."""
        self._over = True
        os.write(self.sink, b"\0")  # wakes the thread: children of the rank may hold the pipe open
        if self._thread is not None:
            self._thread.join()
        self.close()

    def close(self) -> None:
        os.close(self._source)
        os.close(self.sink)

    def _listen(self, told: Callable[[Report], None]) -> None:
        import select

        ready = select.poll()
        ready.register(self._source, select.POLLIN)
        while True:
            over = self._over  # before reading: what comes after is nobody's
            self._read()
            while (report := self._next()) is not None:
                told(report)
            if over:
                return
            if not self._over:  # else what would wake it may have been read already
                ready.poll()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._source, _CHUNK):
                self._held += chunk
        except BlockingIOError:
            return

    def _next(self) -> Report | None:
        """The first one that is whole. Of a rank that was killed in its midst the rest lacks."""
        head, line, rest = bytes(self._held).partition(b"\n")
        if not line:
            return None
        kind, code, seconds, size = head.decode().split(" ")
        if len(rest) < int(size):
            return None
        self._held = bytearray(rest[int(size) :])
        text = rest[: int(size)].decode(errors="replace")
        return Report(kind, int(code), float(seconds), text, time.monotonic())
