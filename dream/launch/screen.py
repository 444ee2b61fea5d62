"""The launcher's screen: what it says, and what it shows of its ranks.

Nothing here raises. A screen that cannot be written is no reason to end a training: it is said
once, and what ranks print is read on and dropped.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import Literal, final

Show = Literal["first", "all", "none"]
"""Whose output is on screen."""

Writer = tuple[int, bool]
"""A rank, and whether it writes to stderr."""


@final
class Screen:
    """stdout and stderr of this process, shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._unfinished: Writer | None = None
        self._broken: set[bool] = set()

    def show(self, rank: int, piece: bytes, *, is_error: bool, prefixed: bool) -> None:
        """What a rank wrote, as it came; or with the rank before each line, where several write."""
        writer = (rank, is_error)
        with self._lock:
            if prefixed:
                goes_on = self._unfinished == writer
                if not goes_on:
                    self._finish_line()
                name = f"[{rank}] ".encode()
                text = name.join(piece.splitlines(keepends=True))
                self._write(text if goes_on else name + text, is_error)
            else:
                self._write(piece, is_error)
            self._unfinished = None if piece.endswith((b"\n", b"\r")) else writer

    def say(self, message: str) -> None:
        """A message of the launcher's own, on stderr, on a line of its own."""
        with self._lock:
            self._finish_line()
            self._write(f"dream run: {message}\n".encode(errors="replace"), is_error=True)

    def _finish_line(self) -> None:
        if self._unfinished is not None:
            self._write(b"\n", self._unfinished[1])
            self._unfinished = None

    def _write(self, data: bytes, is_error: bool) -> None:
        try:
            _put(data, is_error)
        except (
            OSError,
            ValueError,
        ) as error:  # ValueError: the stream was closed, or cannot say it
            if is_error in self._broken:
                return
            self._broken.add(is_error)
            if not is_error:
                reason = getattr(error, "strerror", None) or error
                self.say(
                    f"stdout cannot be written ({reason}). The ranks go on; what they print there "
                    "is read and not shown."
                )


def _put(data: bytes, is_error: bool) -> None:
    """Past Python's buffer, which would keep what could not be written and fail again at exit.
    Streams that somebody has put in the place of the process's own take text."""
    stream = sys.stderr if is_error else sys.stdout
    own = sys.__stderr__ if is_error else sys.__stdout__
    if stream is None:  # the process was started without
        return
    if own is None or stream is not own:
        stream.write(data.decode(errors="replace"))
        stream.flush()
        return
    own.flush()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(own.fileno(), rest) :]
        except BlockingIOError:  # somebody has made the terminal or pipe so, and it is full
            ready = select.poll()
            ready.register(own.fileno(), select.POLLOUT)
            ready.poll()


SCREEN = Screen()
