"""The launcher's screen and logs: what it says, and what its ranks print, as it comes.

Nothing here raises once the ranks run. A screen that cannot be written is no reason to end a
training: it is said once, and what ranks print is read on and dropped.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, final

from dream._errors import ConfigurationError

Show = Literal["first", "all", "none"]
"""Whose output is on screen."""

Writer = tuple[int, bool]
"""A rank, and whether it writes to stderr."""
_CHUNK = 1 << 16
_MOMENT = 0.1
"""Seconds for which the beginning of a line waits for its end."""

_TAIL_BYTES = 1 << 14


@final
class Screen:
    """stdout and stderr of this process, shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._unfinished: Writer | None = None
        self._broken: set[bool] = set()

    def show(self, rank: int, piece: bytes, *, is_error: bool, prefixed: bool) -> None:
        """Show what a rank wrote, as it came; or with the rank before each line."""
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
        """Write a message of the launcher's own, on stderr, on a line of its own."""
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
        except (OSError, ValueError) as error:  # the latter: it was closed, or cannot say it
            if is_error in self._broken:
                return
            self._broken.add(is_error)
            if not is_error:
                reason = getattr(error, "strerror", None) or error
                self.say(
                    f"stdout cannot be written ({reason}). The ranks continue; what they print "
                    "there is not shown."
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


@final
class Output:
    """The streams of one rank, each read by a thread of its own until it ends, whatever becomes of
    what is read."""

    def __init__(
        self,
        rank: int,
        show: bool,
        log_dir: Path | None,
        *,
        prefixed: bool = False,
        again: bool = False,
    ) -> None:
        """prefixed: with the rank before each line on screen. again: the rank has been there
        before; its log goes on. ConfigurationError where the log cannot be opened."""
        self.rank = rank
        self.show = show
        self._prefixed = prefixed
        self._log = None if log_dir is None else _Log(log_dir, rank, again=again)
        self._tail = bytearray()
        self._threads: list[threading.Thread] = []
        self.seen = 0
        """Bytes that came so far."""

    @property
    def tail(self) -> str:
        """The end of stderr."""
        return bytes(self._tail[-_TAIL_BYTES:]).decode(errors="replace")

    def read(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        for stream, is_error in ((stdout, False), (stderr, True)):
            thread = threading.Thread(target=self._pump, args=(stream, is_error), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self, seconds: float) -> None:
        """Wait for the streams' ends; a process that left the rank's group may hold them."""
        limit = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        if self._log is not None and not any(thread.is_alive() for thread in self._threads):
            self._log.close()

    def _pump(self, stream: IO[bytes], is_error: bool) -> None:
        with stream:
            for piece in pieces(stream.fileno()):
                self.seen += len(piece)
                if is_error:
                    self._keep(piece)
                if self._log is not None:
                    self._log.write(piece)
                if self.show:
                    SCREEN.show(self.rank, piece, is_error=is_error, prefixed=self._prefixed)

    def _keep(self, piece: bytes) -> None:
        self._tail += piece
        if len(self._tail) > 4 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]


def finish(outputs: Sequence[Output], seconds: float) -> None:
    """Wait for the ends of all their streams, `seconds` together."""
    limit = time.monotonic() + seconds
    for output in outputs:
        output.finish(max(0.0, limit - time.monotonic()))


def pieces(stream: int) -> Iterator[bytes]:
    """Yield what comes, cut where lines end, so that those of two streams can be put together. A
    beginning whose end does not come within a moment, or that is long, comes as it is."""
    ready = select.poll()
    ready.register(stream, select.POLLIN)
    held = bytearray()
    limit = 0.0
    while True:
        left = limit - time.monotonic()
        if held and (left <= 0 or not ready.poll(left * 1000)):
            yield bytes(held)
            held.clear()
        chunk = os.read(stream, _CHUNK)
        if not chunk:
            break
        cut = _end_of_lines(chunk)
        if cut or len(held) + len(chunk) > _CHUNK:
            cut = cut or len(chunk)
            yield bytes(held) + chunk[:cut]
            held.clear()
        if not held:
            limit = time.monotonic() + _MOMENT
        held += chunk[cut:]
    if held:
        yield bytes(held)


def _end_of_lines(chunk: bytes) -> int:
    """Find where the last whole line ends. A carriage return, as of progress bars, ends one too,
    unless a newline may follow it."""
    return max(chunk.rfind(b"\n"), chunk.rfind(b"\r", 0, len(chunk) - 1)) + 1


@final
class _Log:
    """A rank's output in DIR/rankN.log."""

    def __init__(self, folder: Path, rank: int, *, again: bool) -> None:
        path = folder / f"rank{rank}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab" if again else "wb", buffering=0)
        except OSError as error:
            raise ConfigurationError(
                f"The log cannot be written. Received: --log-dir {folder} ({path}: "
                f"{error.strerror}). Name a writable folder, or remove --log-dir."
            ) from error
        self._told = False

    def write(self, piece: bytes) -> None:
        """Or say, once, that it cannot be: a full disk is no reason to end a training."""
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            if not self._told:
                self._told = True
                SCREEN.say(
                    f"{self._file.name} cannot be written ({error.strerror}). The ranks continue; "
                    "output that cannot be logged is dropped."
                )

    def close(self) -> None:
        self._file.close()
