"""What ranks print: on screen with the rank before each line, into files as it came."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

Show = Literal["first", "all", "none"]
_TAIL_LINES = 40


class Output:
    """The streams of one rank, each read by a thread of its own."""

    _screen = threading.Lock()

    def __init__(self, rank: int, show: bool, log_dir: Path | None, *, again: bool = False) -> None:
        """again: the rank has been there before; its log goes on."""
        self._rank = rank
        self._show = show
        self._log: IO[bytes] | None = None
        if log_dir is not None:
            self._log = (log_dir / f"rank{rank}.log").open("ab" if again else "wb", buffering=0)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._threads: list[threading.Thread] = []
        self.lines = 0

    @property
    def tail(self) -> str:
        """The end of stderr."""
        return "".join(tuple(self._tail))

    def read(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        for stream, is_error in ((stdout, False), (stderr, True)):
            thread = threading.Thread(target=self._pump, args=(stream, is_error), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self, timeout: float) -> None:
        """Wait for the streams' ends; a process that left the rank's group may hold them."""
        for thread in self._threads:
            thread.join(timeout)
        if self._log is not None and not any(thread.is_alive() for thread in self._threads):
            self._log.close()

    def _pump(self, stream: IO[bytes], is_error: bool) -> None:
        with stream:
            for line in _lines(stream):
                self.lines += 1
                text = line.decode(errors="replace")
                if is_error:
                    self._tail.append(text)
                if self._log is not None:
                    self._log.write(line)
                if self._show:
                    self._print(text, sys.stderr if is_error else sys.stdout)

    def _print(self, text: str, screen: IO[str]) -> None:
        end = "" if text.endswith(("\n", "\r")) else "\n"
        with self._screen:
            screen.write(f"[{self._rank}] {text}{end}")
            screen.flush()


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines with their ends; a progress bar's carriage return ends one too."""
    rest = b""
    while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
        parts = (rest + chunk).replace(b"\r\n", b"\n").splitlines(keepends=True)
        rest = b"" if parts[-1].endswith((b"\n", b"\r")) else parts.pop()
        yield from parts
    if rest:
        yield rest
