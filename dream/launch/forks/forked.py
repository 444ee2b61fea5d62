"""A rank's process, in an interpreter of its own or forked by a server (`fork_server.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, final

from dream._errors import DreamError
from dream.launch.child import PARENT, REPORT
from dream.launch.forks import fork_server
from dream.launch.forks.foresight import IMPORTS, foresee
from dream.launch.guard import temporary_folder

SERVER = "DREAM_FORK_SERVER"
"""The variable that names a server's socket."""

_PATIENCE = 300.0
"""Seconds for the imports of a parent, on a machine that is busy."""


@final
class NotForked(DreamError):
    """A server does not fork a rank: it can be started fresh."""


@final
class Fresh(subprocess.Popen[bytes]):
    """A rank in an interpreter of its own."""

    why = ""
    """Why it was not forked, where that was tried."""

    def wait_for_end(self) -> None:
        """Return once it has ended. Until `wait` its number is not given to another process."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


@final
class Forked:
    """A rank that a server forked; to its launcher what `Fresh` is.

    It is killed, with its process group, when this object's connection closes.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        files: Sequence[int],
        passed: Mapping[str, int],
    ) -> None:
        """command: a script and its arguments. environ: the rank's, with the server's. files: its
        standard input, output and errors. passed: further descriptors, each by the variable that
        tells the rank its number. NotForked where the server forks nothing."""
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._code: int | None = None
        server = environ[SERVER]
        foreseen = foresee(command, environ)
        request = {
            "command": list(command),
            "environ": _without_server(environ),
            "imports": foreseen.modules,
            "sets": foreseen.sets,
            "folder": os.getcwd(),  # noqa: PTH109 - a word of the message
            "beside": _beside(command),
            "passed": list(passed),
            "standing": fork_server.standing(),
        }
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(_PATIENCE)
        try:
            self._link.connect(server)
            message = json.dumps(request).encode()
            socket.send_fds(self._link, [message], [*files, *passed.values()])
            answer = self._link.recv(fork_server.LONGEST_REQUEST).decode()
        except OSError as error:
            self._link.close()
            raise NotForked(f"the fork server at {server}: {error}") from error
        if not answer.isdigit():
            self._link.close()
            raise NotForked(answer or f"the fork server at {server} ended")
        self._link.settimeout(None)
        self.pid = int(answer)

    def wait_for_end(self) -> None:
        """Return once it has ended. Until `wait` its number is not given to another process."""
        if self._code is None:  # a server that died took its ranks with it
            self._code = int(self._link.recv(fork_server.LONGEST_REQUEST) or -signal.SIGKILL)

    def poll(self) -> int | None:
        """Its exit code once it has ended; None before."""
        if self.returncode is None and select.select([self._link], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            self.wait_for_end()
            self._link.close()
            self.returncode = self._code
        assert self.returncode is not None
        return self.returncode


def _without_server(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in environ if name not in (SERVER, IMPORTS)}


def _beside(command: Sequence[str]) -> str:
    """Return the folder that the rank looks for modules in first; empty where that is unknown."""
    kind, name = [*command[1:3], "", ""][:2]
    if kind == "script":
        return str(Path(name).resolve().parent)
    if kind == "module":
        return os.getcwd()  # noqa: PTH109
    return ""


def start(command: Sequence[str], environ: Mapping[str, str], report: int) -> Fresh | Forked:
    """Start a rank whose output comes through pipes: from a fork server, where the environment
    names one and it is foreseen what the rank will import; fresh where that server refuses.

    command: a script and its arguments. report: the descriptor of DREAM_REPORT. OSError where the
    system starts no more processes.
    """
    why = ""
    if environ.get(SERVER) and foresee(command, environ).modules:
        try:
            return _fork(command, environ, report)
        except NotForked as error:
            why = str(error)
    rank = Fresh(
        [sys.executable, *command],
        env={**_without_server(environ), REPORT: str(report), PARENT: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(report,),
        start_new_session=True,
    )
    rank.why = why
    return rank


def _fork(command: Sequence[str], environ: Mapping[str, str], report: int) -> Forked:
    with contextlib.ExitStack() as held:
        null = held.enter_context(open(os.devnull, "rb"))  # noqa: PTH123
        output, its_output = os.pipe()
        errors, its_errors = os.pipe()
        held.callback(os.close, its_output)
        held.callback(os.close, its_errors)
        streams = open(output, "rb", 0), open(errors, "rb", 0)  # noqa: PTH123, SIM115
        files = (null.fileno(), its_output, its_errors)
        try:
            rank = Forked(command, environ, files, {REPORT: report})
        except NotForked:
            for stream in streams:
                stream.close()
            raise
        rank.stdout, rank.stderr = streams
        return rank


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server for as long as the block lasts; yields its socket's path. Linux only."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(temporary_folder("dream-fork-"))
        path = f"{folder}/server"
        listener = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen(128)
        process = subprocess.Popen(
            [sys.executable, fork_server.__file__, "server", str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
        listener.close()
        try:
            yield path
        finally:
            process.communicate()  # its input ends, and so does it
