"""One rank, started by an actor on the host that an engine chose for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, final

from dream.cluster.ports import reserve
from dream.launch import child
from dream.launch.guard import Guard

_MOST_PIECES = 4096
"""Lines that wait to be fetched: a rank that prints faster does not wait for the network."""

Pieces = list[tuple[bool, bytes]]
"""What was printed since: whether on stderr, and the lines."""


@final
class RankProcess:
    """Called from afar, one call at a time. The rank goes where this process does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = Guard()
        self._pieces: deque[tuple[bool, bytes]] = deque()
        self._left_out = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._folder = tempfile.mkdtemp(prefix="dream-rank-")
        self._guard.add_folder(Path(self._folder))

    def port(self) -> int:
        """Return a port that is free here."""
        held = reserve()
        held.close()
        return held.port

    def host(self) -> str:
        return socket.gethostname()

    def start(
        self, command: Sequence[str], environ: Mapping[str, str], folder: str, call: bytes = b""
    ) -> str:
        """Start the rank. call: a function, for `dream.launch`. Return what stands in the way."""
        if not os.path.isdir(folder):  # noqa: PTH112
            return (
                f"{self.host()} has no folder {folder}: the script must be at the same path on "
                "every host"
            )
        if call:
            file = Path(self._folder, "call")
            file.write_bytes(call)
            command = ("function", str(file), str(Path(self._folder, "result")))
        self._process = subprocess.Popen(
            [sys.executable, child.__file__, *command],
            env={**os.environ, **environ},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._guard.add(self._process.pid)
        for stream, is_error in ((self._process.stdout, False), (self._process.stderr, True)):
            assert stream is not None
            thread = threading.Thread(target=self._read, args=(stream, is_error), daemon=True)
            thread.start()
            self._threads.append(thread)
        return ""

    def news(self) -> tuple[Pieces, int | None, float]:
        """Return what it printed since, its exit code once it has ended, and when."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            for thread in self._threads:
                thread.join(1.0)
        return self._since(), code, time.time()

    def _since(self) -> Pieces:
        """Take what was printed, after a line on how much more it was."""
        with self._lock:
            pieces, left_out = [*self._pieces], self._left_out
            self._pieces.clear()
            self._left_out = 0
        if left_out:
            pieces.insert(0, (True, f"... {left_out} lines left out\n".encode()))
        return pieces

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it and all that it has started."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, 9)
            except ProcessLookupError:
                return

    def result(self, rank: int) -> bytes:
        """Return what `dream.launch`'s function gave; empty where it gave nothing."""
        file = Path(self._folder, f"result{rank}")
        return file.read_bytes() if file.exists() else b""

    def _read(self, stream: IO[bytes], is_error: bool) -> None:
        with stream:
            for line in stream:
                with self._lock:
                    if len(self._pieces) == _MOST_PIECES:
                        self._pieces.popleft()
                        self._left_out += 1
                    self._pieces.append((is_error, line))
