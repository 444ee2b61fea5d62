"""Where this rank is: waiting, or about its own business. Seen from another thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import final

from dream.stall import marks

_IDLE = 0.01
"""Share of the time between two looks below which a thread has stood still: one that waits in a
framework's core does nothing at all."""

_POOL_IDLE = 0.2
"""The same of the whole process, where a framework computes in threads of its own: some of them
look for work now and then."""


@dataclass(frozen=True, slots=True)
class Posture:
    """call: what this rank waits in; empty where it does not wait. ranks: those that it waits for;
    None where it cannot tell. mark: the same for as long as it is the same wait."""

    call: str = ""
    ranks: tuple[int, ...] | None = None
    mark: Hashable = None


@final
class Observer:
    """Looks at the thread that trains."""

    def __init__(self) -> None:
        self._frame: Hashable = None
        self._ran = self._spent = 0.0

    def look(self, seconds: float) -> Posture:
        """seconds: since the last look."""
        frame = trained_frame()
        code = None if frame is None else frame.f_code
        call = marks.call_in(code.co_filename, code.co_name) if code is not None else ""
        standing = frame is not None and call != "" and self._still(frame, seconds)
        wait = marks.longest_wait()
        if wait is not None:
            return Posture(wait.call, None if wait.ranks is None else tuple(wait.ranks()), wait)
        return Posture(call, None, self._frame) if standing else Posture()

    def _still(self, frame: FrameType, seconds: float) -> bool:
        """Whether nothing has moved since the last look: neither Python, nor what is under it."""
        mark, ran = (id(frame), frame.f_lasti, marks.way.steps), _seconds_run(marks.way.thread)
        spent = time.process_time()
        # A later call's frame may have the same id, and to hold one would keep its tensors: so the
        # frame itself is marked, by a word that only those who trace a framework's lines go by.
        seen, frame.f_trace_lines = not frame.f_trace_lines, False
        still = seen and mark == self._frame and ran - self._ran <= _IDLE * seconds
        if marks.computes_elsewhere(frame.f_code.co_filename):
            still = still and spent - self._spent <= _POOL_IDLE * seconds
        self._frame, self._ran, self._spent = mark, ran, spent
        return still


def trained_frame() -> FrameType | None:
    """The innermost frame of the thread that trains."""
    return sys._current_frames().get(marks.way.thread)


def _seconds_run(thread: int) -> float:
    """What a thread has computed so far, in seconds; 0 where the system does not tell."""
    native = next((t.native_id for t in threading.enumerate() if t.ident == thread), None)
    try:
        text = Path(f"/proc/self/task/{native}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(text.split()[0]) / 1e9
