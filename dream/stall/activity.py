"""What this rank is doing: the steps it makes and the waits it tells of, at next to no cost, and
where it is as a thread of its own sees it."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import final

from dream.data import tracked

_IDLE = 0.01
"""Share of the time between two looks below which a thread has stood still: one that waits in a
framework's core does nothing at all."""

_PACE_LOOKS = 11
"""Looks that the pace is of."""

_POOL_IDLE = 0.2
"""The same of the whole process, where a framework computes in threads of its own: some of them
look for work now and then."""


@final
class StepCount:
    """How far this process has come. steps: training steps. thread: the one that makes them."""

    __slots__ = ("steps", "thread")

    def __init__(self) -> None:
        self.steps, self.thread = 0, threading.main_thread().ident or 0


progress = StepCount()


def stepped() -> None:
    """Count a training step that begins: every rank makes as many, in step."""
    progress.steps += 1
    progress.thread = threading.get_ident()


def resumed(steps: int) -> None:
    """Count on from a training's earlier life."""
    progress.steps = steps


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A wait that is under way. call: what for, in words. ranks: gives those waited for, of the
    job; None where the wait does not know. patient: whether it may last as long as others are
    busy."""

    call: str
    ranks: Callable[[], Sequence[int]] | None = None
    patient: bool = False


_waits: dict[Waiting, None] = {}


@contextmanager
def waiting(
    call: str, ranks: Callable[[], Sequence[int]] | None = None, *, patient: bool = False
) -> Iterator[None]:
    """Tell of a wait that ends by itself when its patience does; of a patient one, that it has no
    end but the others' coming. To be entered late: once it is seen that others have not come."""
    wait = Waiting(call, ranks, patient)
    _waits[wait] = None
    try:
        yield
    finally:
        del _waits[wait]


def longest_wait() -> Waiting | None:
    """Return the wait that began first, of those under way."""
    return next(iter(list(_waits)), None)


_inside: dict[str, str] = {}
_pooled: set[str] = set()


def waits_inside(calls: Mapping[str, str], *, pooled: bool = False) -> None:
    """Declare that a framework waits for other ranks inside calls of these files, where nobody can
    tell but by the stack. calls: file, or folder with a slash at its end -> the call in words; ""
    for the function's own name. pooled: whether it computes there too, in threads of its own."""
    _inside.update(calls)
    if pooled:
        _pooled.update(calls)


def computes_elsewhere(file: str) -> bool:
    """Whether a thread that stands still in this file says nothing of what others compute."""
    return file in _pooled


_callers: set[str] = set()


def called_from(files: Iterable[str]) -> None:
    """Declare files from which a framework calls the script's functions in threads of its own:
    while one of them runs, the call that the script is in waits for it, and not for ranks."""
    _callers.update(files)


def called_frame() -> FrameType | None:
    """Return the innermost frame of such a function; None where there is none, or where it waits
    for ranks itself."""
    frames = sys._current_frames() if _callers else {}
    found = (frame for thread, frame in frames.items() if thread != progress.thread)
    return next((frame for frame in found if _is_called(frame)), None)


def _is_called(frame: FrameType) -> bool:
    at: FrameType | None = frame
    while at is not None and at.f_code.co_filename not in _callers:
        at = at.f_back
    return at is not None and not call_in(frame.f_code.co_filename, frame.f_code.co_name)


def call_in(file: str, function: str) -> str:
    """Name the call, where this function of this file may wait for other ranks; else empty."""
    words = _inside.get(file)
    if words is None:
        folders = (
            name for place, name in _inside.items() if place[-1] == "/" and file.startswith(place)
        )
        words = next(folders, None)
    return "" if words is None else words or f"{function}()"


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank does now, and whom it waits for.

    call: what this rank waits in; empty where it does not wait. ranks: those that it waits for;
    None where it cannot tell. mark: the same for as long as it is the same wait. patient: whether
    that may last.
    """

    call: str = ""
    ranks: tuple[int, ...] | None = None
    mark: Hashable = None
    patient: bool = False


@final
class SampleRate:
    """How quickly samples are trained on, of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_PACE_LOOKS)

    def look(self, now: float) -> float:
        """Return samples a second since some looks ago. now: by the monotonic clock."""
        self._seen.append((now, tracked.handed.samples))
        (before, first), (_, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - before) if now > before else 0.0


@final
class ThreadObserver:
    """Looks at the thread that trains."""

    def __init__(self) -> None:
        self._frame: Hashable = None
        self._ran = self._spent = 0.0

    def look(self, seconds: float) -> Activity:
        """seconds: since the last look."""
        frame = trained_frame()
        code = None if frame is None else frame.f_code
        call = call_in(code.co_filename, code.co_name) if code is not None else ""
        standing = frame is not None and call != "" and self._still(frame, seconds)
        standing = standing and called_frame() is None
        wait = longest_wait()
        if wait is not None:
            ranks = None if wait.ranks is None else tuple(wait.ranks())
            return Activity(wait.call, ranks, wait, wait.patient)
        return Activity(call, None, self._frame) if standing else Activity()

    def _still(self, frame: FrameType, seconds: float) -> bool:
        """Whether nothing has moved since the last look: neither Python, nor what is under it."""
        mark, ran = (id(frame), frame.f_lasti, progress.steps), _seconds_run(progress.thread)
        spent = time.process_time()
        # A later call's frame may have the same id, and to hold one would keep its tensors: so the
        # frame itself is marked, by a word that only those who trace a framework's lines go by.
        seen, frame.f_trace_lines = not frame.f_trace_lines, False
        still = seen and mark == self._frame and ran - self._ran <= _IDLE * seconds
        if computes_elsewhere(frame.f_code.co_filename):
            still = still and spent - self._spent <= _POOL_IDLE * seconds
        self._frame, self._ran, self._spent = mark, ran, spent
        return still


def trained_frame() -> FrameType | None:
    """Return the innermost frame of the thread that trains."""
    return sys._current_frames().get(progress.thread)


def _seconds_run(thread: int) -> float:
    """Return for how long a thread has computed so far; 0 where the system does not tell."""
    native = next((t.native_id for t in threading.enumerate() if t.ident == thread), None)
    try:
        text = Path(f"/proc/self/task/{native}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(text.split()[0]) / 1e9
