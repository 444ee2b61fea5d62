"""Hosts that were reached by ssh: their launchers' output, signals to them, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, final

from dream.launch.engines.request import Host, interpreter
from dream.launch.output import SCREEN

_KEPT = 60
_MET = b" listens at "
"""In what a launcher says once it has found the others."""

_FAREWELL_SECONDS = 20.0
_PAUSE_SECONDS = 1.0
_REACHED = 255
"""ssh's own exit code, where it does not come to the command's."""


@final
class Remote:
    """A host's launcher, from here. shows: its output comes on this screen as it comes; else it is
    kept, for the case that nothing else tells why it ended."""

    def __init__(self, host: Host, way: list[str], *, shows: bool) -> None:
        self.host = host
        self._shows = shows
        self.met = False
        """Whether its launcher has begun to talk to the others."""

        self.kept: deque[bytes] = deque(maxlen=_KEPT)
        # in a session of its own: Ctrl-C is passed on, and does not cut the channel
        self._process = subprocess.Popen(
            way, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._threads = [
            threading.Thread(target=self._pass_on, args=(source, sink.fileno()), daemon=True)
            for source, sink in streams
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, command: list[str], environ: dict[str, str]) -> None:
        asked = {"folder": str(Path.cwd()), "environ": environ, "command": command}
        self._send(json.dumps(asked))

    def signal(self, number: int) -> None:
        self._send(str(number))

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def close(self) -> None:
        """Let go of the channel, which ends what is left there; wait for what was printed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(2.0)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return  # its end says why

    def _pass_on(self, source: IO[bytes], sink: int) -> None:
        with source:
            for line in source:
                self.kept.append(line)
                self.met = self.met or _MET in line
                if self._shows:
                    _write(sink, line)


def _write(sink: int, line: bytes) -> None:
    """A screen that is gone ends no training."""
    try:
        while line:
            line = line[os.write(sink, line) :]
    except OSError:
        return


@final
class Hosts:
    """A job's. begin: starts a host's launcher, at first and again. restarts: how often, in all, a
    host that is lost is tried again: the others wait for it, as --max-restarts has them do."""

    def __init__(self, begin: Callable[[int], Remote], count: int, restarts: int) -> None:
        self._begin, self._restarts = begin, restarts
        self._remotes: list[Remote] = []
        self._said: set[Remote] = set()
        self._stopped = False
        for node in range(count):
            self._remotes.append(begin(node))

    def until_the_end(self, events: SimpleQueue[int]) -> int:
        """Pass signals on until all have ended. Return the exit code."""
        while any(remote.code is None for remote in self._remotes):
            with contextlib.suppress(Empty):
                self._signal(events.get(timeout=0.1))
            for node, remote in enumerate(self._remotes):
                if remote.code and remote not in self._said:
                    self._said.add(remote)
                    self._ended(node, remote)
        return next((remote.code for remote in self._remotes if remote.code), 0) or 0

    def close(self) -> None:
        for remote in self._remotes:
            remote.close()

    def _signal(self, number: int) -> None:
        self._stopped = True
        for remote in self._remotes:
            remote.signal(number)

    def _ended(self, node: int, remote: Remote) -> None:
        """Where it was lost, start it again, or have the others not wait for it: those that have
        met it notice by themselves, and say so."""
        if not _say_lost(remote) or self._stopped:
            return
        if self._restarts > 0:
            self._restarts -= 1
            SCREEN.say(f"{remote.host.name} is started again.")
            time.sleep(_PAUSE_SECONDS)
            remote.close()
            self._remotes[node] = self._begin(node)
        elif not remote.met:
            self._signal(signal.SIGTERM)


def _say_lost(remote: Remote) -> bool:
    """Say why a host's launcher is gone where it could not say so itself. Whether that is so."""
    code = remote.code
    if code not in (_REACHED, 126, 127) and (code or 0) >= 0:
        return False
    time.sleep(0.2)  # its last words are on the way
    words = b"".join(remote.kept).decode(errors="replace").rstrip()
    SCREEN.say(
        f"{remote.host.name} is not reached, or lost (exit code {code}): "
        f"{words or 'no word of why'}. Every host is reached by `ssh HOST` without a password, and "
        f"has {interpreter()}."
    )
    return True
