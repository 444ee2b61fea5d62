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
_LAST_SECONDS = 2.0
"""For its last words, once it has ended."""


@final
class Remote:
    """A host's launcher, from here. shows: its output comes on this screen as it comes; else it is
    kept, for the case that nothing else tells why it ended."""

    def __init__(self, host: Host, way: list[str], *, shows: bool) -> None:
        self.host = host
        self._shows = shows
        self.met = False
        """Whether its launcher has begun to talk to the others."""

        self.reached = False
        """Whether it has said that it is there."""

        self.kept: deque[bytes] = deque(maxlen=_KEPT)
        self._word = os.urandom(16).hex()
        self._told: int | None = None
        self._code: int | None = None
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
        self._send(json.dumps({**asked, "word": self._word}))

    def signal(self, number: int) -> None:
        self._send(str(int(number)))

    @property
    def code(self) -> int | None:
        """The launcher's exit code, as it said it; where it could not, that of what reached it,
        and never 0. None until it has ended."""
        code = self._process.poll()
        if code is not None and self._code is None:
            for thread in self._threads:
                thread.join(_LAST_SECONDS)
            self._code = (code or 1) if self._told is None else self._told
        return self._code

    @property
    def lost(self) -> bool:
        """Whether it has ended without its last word."""
        return self.code is not None and self._told is None

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
                line = self._less_a_word(line)
                self.kept.append(line)
                self.met = self.met or _MET in line
                if self._shows:
                    _write(sink, line)

    def _less_a_word(self, line: bytes) -> bytes:
        """Hear a word of the launcher's, which may stand after the end of what has no newline."""
        text, heard, said = line.partition(self._word.encode())
        if heard:
            self.reached = True
            self._told = int(said) if said.strip() else None
        return text


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
        while self._look():
            with contextlib.suppress(Empty):
                self._signal(events.get(timeout=0.1))
        return next((remote.code for remote in self._remotes if remote.code), 0) or 0

    def _look(self) -> bool:
        """See to the hosts that have ended since. Whether there may be more to see."""
        left = any(remote.code is None for remote in self._remotes)
        for node, remote in enumerate(self._remotes):
            if remote.code and remote not in self._said:
                self._said.add(remote)
                self._ended(node, remote)
        return left or any(remote.code is None for remote in self._remotes)

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
    if not remote.lost:
        return False
    words = b"".join(remote.kept).decode(errors="replace").rstrip()
    SCREEN.say(
        f"{remote.host.name} is {'lost' if remote.reached else 'not reached'} (exit code "
        f"{remote.code}): {words or 'no reason given'}. Every host must be reachable by `ssh HOST` "
        f"without a password, and must have {interpreter()}."
    )
    return True
