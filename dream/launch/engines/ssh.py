"""`dream run --hosts a:4,b:4`: one `dream run` on each host, started over ssh.

What a host is to run goes over the channel that ssh opens, with the token; the command line that
others can see is the same for every job. The hosts' own launchers do the rest: they meet, watch,
name who failed and end together.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, final

from dream._errors import ConfigurationError
from dream.cluster import settings
from dream.cluster.ports import is_loopback, local_address
from dream.launch.engines.engine import Engine, carried, program
from dream.launch.engines.request import Host, Request, interpreter
from dream.launch.output import SCREEN

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5",
            "-o", "ServerAliveCountMax=3")  # fmt: skip
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_KEPT = 60
_FAREWELL_SECONDS = 20.0
"""How long the others may take once one host could not be started; then their channels close."""

_REACHED = 255
"""ssh's own exit code, where it does not come to the command's."""


@final
class Ssh(Engine):
    def written(self, request: Request) -> str:
        hosts = _several(request)
        first = _first_address(request)
        return "\n".join(
            f"{shlex.join(_way(request, host))}"
            f"   # dream {shlex.join(_command(request, node, first))}"
            for node, host in enumerate(hosts)
        )

    def start(self, request: Request) -> int:
        hosts = _several(request)
        first = _first_address(request)
        environ = carried() | {settings.TOKEN: os.environ.get(settings.TOKEN) or _token()}
        started: list[_Remote] = []
        events: SimpleQueue[int] = SimpleQueue()
        before = {number: signal.signal(number, _putting(events)) for number in _SIGNALS}
        try:
            for node, host in enumerate(hosts):
                remote = _Remote(
                    host, _way(request, host), shows=node == 0 or request.given.all_output
                )
                started.append(remote)
                remote.ask(_command(request, node, first), environ)
            return _until_the_end(started, events)
        finally:
            for remote in started:
                remote.close()
            for number, handler in before.items():
                signal.signal(number, handler)


def _several(request: Request) -> tuple[Host, ...]:
    if not request.hosts:
        raise ConfigurationError(
            "ssh needs to know the hosts. Received: --on ssh, no --hosts. Give --hosts A:4,B:4, or "
            "a file."
        )
    return request.hosts


def _token() -> str:
    return os.urandom(16).hex()


def _putting(events: SimpleQueue[int]) -> Callable[[int, FrameType | None], None]:
    def put(number: int, frame: FrameType | None) -> None:
        del frame
        events.put(number)

    return put


def _first_address(request: Request) -> str:
    """Return where the other hosts reach the first: as told, else as ssh's own settings say that
    its name is to be read."""
    if request.given.master_addr:
        return str(request.given.master_addr)
    first = request.hosts[0]
    asked = subprocess.run(
        [*_ssh(request), "-G", "--", first.name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    names = [line.split()[1] for line in asked.stdout.splitlines() if line.startswith("hostname ")]
    address = names[0] if names else first.address
    if len(request.hosts) > 1 and is_loopback(address):
        raise ConfigurationError(
            f"The other hosts must reach the first. Received: {address} as the first of --hosts. "
            "Name it as they know it, or give --master-addr."
        )
    return address


def _ssh(request: Request) -> list[str]:
    ssh = program("ssh", "Install OpenSSH's client.")
    return [ssh, *_OPTIONS, *request.given.engine_option]


def _way(request: Request, host: Host) -> list[str]:
    """Return what starts Python on a host: on this one itself no ssh."""
    here = [interpreter(), "-m", "dream.launch.engines.remote"]
    if is_loopback(host.address) or local_address(host.address) is not None:
        return here
    return [*_ssh(request), "--", host.name, f"exec {shlex.join(here)}"]


def _command(request: Request, node: int, first: str) -> list[str]:
    hosts = len(request.hosts)
    place = ["--nnodes", str(hosts), "--node-rank", str(node), "--master-addr", first]
    return request.command(*(place if hosts > 1 else ()))


@final
class _Remote:
    """A host's launcher, from here. shows: its output comes on this screen as it comes; else it is
    kept, for the case that nothing else tells why it ended."""

    def __init__(self, host: Host, way: list[str], *, shows: bool) -> None:
        self.host = host
        self._shows = shows
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
                if self._shows:
                    _write(sink, line)


def _write(sink: int, line: bytes) -> None:
    """A screen that is gone ends no training."""
    try:
        while line:
            line = line[os.write(sink, line) :]
    except OSError:
        return


def _until_the_end(started: list[_Remote], events: SimpleQueue[int]) -> int:
    """Pass signals on until all have ended. Where one ends before it could meet the others, they
    are told, and not left to wait for it."""
    limit: float | None = None
    said: set[int] = set()
    while any(remote.code is None for remote in started):
        try:
            number = events.get(timeout=0.1)
            for remote in started:
                remote.signal(number)
        except Empty:
            pass
        for node, remote in enumerate(started):
            if remote.code and node not in said:
                said.add(node)
                if _say_lost(remote) and limit is None:
                    limit = time.monotonic() + _FAREWELL_SECONDS
        if limit is not None and time.monotonic() > limit - _FAREWELL_SECONDS:
            for remote in started:
                remote.signal(signal.SIGTERM)
            limit = float("inf")
    return next((remote.code for remote in started if remote.code), 0) or 0


def _say_lost(remote: _Remote) -> bool:
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
