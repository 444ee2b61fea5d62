"""Ranks that stay up, and do together what a test asks for."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("ranks_worker.py")
START_SECONDS = 300.0
ANSWER_SECONDS = 200.0
PATIENT = {"DREAM_STALL_SECONDS": "600", "DREAM_STARTUP_SECONDS": "300"}
"""An answer comes before: nobody waits for so long, where it is not what is tested."""

DREAM = Path(sys.executable).with_name("dream")
QUIET = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
}


class Raised(AssertionError):
    """What a rank raised."""

    def __init__(self, rank: int, kinds: list[str], message: str, trace: str) -> None:
        super().__init__(f"rank {rank}: {trace}")
        self.rank, self.kinds, self.message = rank, kinds, message


class Ranks:
    """connections: in rank order."""

    def __init__(self, connections: list[Connection], framework: str) -> None:
        self._connections = connections
        self.framework = framework
        self.size = len(connections)

    def __str__(self) -> str:
        return f"{self.framework}-{self.size}"

    def outcomes(self, name: str, *arguments: Any) -> list[Any]:
        """What each rank gave, or the Raised that it raised."""
        for connection in self._connections:
            connection.send((name, arguments))
        found: list[Any] = []
        for rank, connection in enumerate(self._connections):
            assert connection.poll(ANSWER_SECONDS), f"rank {rank} hangs in {name} {arguments}"
            kind, value = connection.recv()
            found.append(value if kind == "gave" else Raised(rank, *value))
        return found

    def gave(self, name: str, *arguments: Any) -> list[Any]:
        """What each rank gave; raises the first Raised."""
        found = self.outcomes(name, *arguments)
        for one in found:
            if isinstance(one, Raised):
                raise one
        return found


@contextmanager
def ranks(
    framework: str, size: int, log: Path, hosts: int = 1, **environment: str
) -> Iterator[Ranks]:
    """A job under `dream run`.

    framework: one, or several with commas, dealt out by rank. size: of the whole job. hosts: a
    launcher for each, as if they shared no memory.
    """
    key = secrets.token_bytes(16)
    with Listener(("127.0.0.1", 0), authkey=key) as listener, log.open("wb") as file:
        port = str(listener.address[1])
        script = [str(WORKER), port, key.hex(), framework]
        jobs = [
            subprocess.Popen(
                [*command, "--framework", framework, *script],
                env=os.environ | QUIET | PATIENT | environment | {"DREAM_TOKEN": key.hex()},
                stdout=file,
                stderr=file,
            )
            for command in commands(size, hosts)
        ]
        connections: dict[int, Connection] = {}
        try:
            while len(connections) < size:
                connection = _accept(listener, jobs[0], log)
                connections[connection.recv()] = connection
            yield Ranks([connections[rank] for rank in range(size)], framework)
            for connection in connections.values():
                connection.send(None)
            assert [job.wait(120) for job in jobs] == [0] * hosts, log.read_text()
        finally:
            for connection in connections.values():
                connection.close()
            for job in jobs:
                job.terminate()
                job.wait(60)


def commands(size: int, hosts: int) -> list[list[str]]:
    """What starts the job: a launcher for each host."""
    if hosts == 1:
        return [[str(DREAM), "run", "-n", str(size)]]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    several = ["-n", str(size // hosts), "--nnodes", str(hosts), "--master-port", str(port)]
    return [[str(DREAM), "run", *several, "--node-rank", str(host)] for host in range(hosts)]


def _accept(listener: Listener, job: subprocess.Popen[bytes], log: Path) -> Connection:
    """The next rank. A job that ends instead is told with its output."""
    import select

    end = time.monotonic() + START_SECONDS
    waiting = listener._listener._socket  # type: ignore[attr-defined]
    while not select.select([waiting], [], [], 0.1)[0]:
        assert job.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
    return listener.accept()
