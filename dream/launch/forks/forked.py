"""A rank's process, in an interpreter of its own or forked by a server (`fork_server.py`)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, final

from dream.cluster.settings import FRAMEWORK
from dream.launch.child import PARENT, REPORT
from dream.launch.forks import fork_server

SERVER = "DREAM_FORK_SERVER"
"""The variable that names a server's socket."""

IMPORTS = "DREAM_FORK_IMPORTS"
"""The variable that says what ranks will import: "torch,keras", or any modules. Else `--framework`
tells, or the script's own lines. A wrong guess costs time and nothing else: what a rank does not
import, it does not see."""

_MODULES = {
    "torch": "torch torch.distributed.tensor torch.distributed.fsdp torch.distributed.pipelining "
    "torch._dynamo",  # the optimizers' first step imports it
    "tensorflow": "tensorflow tensorflow.experimental.dtensor",
    "keras": "keras",
}

_IMPORT = r"^\s*(?:import|from) {}\b"

_PATIENCE = 300.0
"""Seconds for the imports of a parent, on a machine that is busy."""


@final
class Fresh(subprocess.Popen[bytes]):
    """A rank in an interpreter of its own."""

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
        tells the rank its number. OSError where the server forks nothing."""
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._code: int | None = None
        server = environ[SERVER]
        request = {
            "command": list(command),
            "environ": {name: environ[name] for name in environ if name not in (SERVER, IMPORTS)},
            "imports": imports(command, environ),
            "folder": os.getcwd(),  # noqa: PTH109 - a word of the message
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
            if not answer.isdigit():
                raise OSError(errno.ECHILD, answer or f"the fork server at {server} ended")
        except OSError:
            self._link.close()
            raise
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


def imports(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the modules to import before a rank is forked; none where that is not known."""
    names = environ.get(IMPORTS, "").split(",")
    if names == [""] and environ.get(FRAMEWORK):
        backend = environ.get("KERAS_BACKEND") == environ[FRAMEWORK]
        names = [environ[FRAMEWORK], *["keras"] * backend]
    if names == [""] and command[1] == "script":
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = Path(command[2]).read_text()
            names = [name for name in _MODULES if re.search(_IMPORT.format(name), lines, re.M)]
    modules = [module for name in names if name for module in _MODULES.get(name, name).split()]
    return ["numpy", "dream", *modules] if modules else []


def start(command: Sequence[str], environ: Mapping[str, str], report: int) -> Fresh | Forked:
    """Start a rank whose output comes through pipes: from a fork server, where the environment
    names one and what it is to import.

    command: a script and its arguments. report: the descriptor of DREAM_REPORT. OSError where the
    system starts no more processes.
    """
    if not (environ.get(SERVER) and imports(command, environ)):
        return Fresh(
            [sys.executable, *command],
            env={**environ, REPORT: str(report), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(report,),
            start_new_session=True,
        )
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
        except OSError:
            for stream in streams:
                stream.close()
            raise
        rank.stdout, rank.stderr = streams
        return rank


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server for as long as the block lasts; yields its socket's path. Linux only."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="dream-fork-"))
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
