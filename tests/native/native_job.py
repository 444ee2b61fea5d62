"""Ranks without a framework or a launcher, that stay up and do together what a test asks for."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("native_worker.py")
ANSWER_SECONDS = 120.0
STALL_SECONDS = "600"
"""So long that nobody waits for it: an answer comes before, or is missed."""


def left_in_shared_memory() -> set[Path]:
    """What lies there now, less what launchers of other jobs keep there for a while."""
    there = Path("/dev/shm").iterdir()
    return {path for path in there if not path.name.startswith("dream-commits-")}


class Job:
    """processes: the ranks', in order."""

    def __init__(
        self, connections: list[Connection], processes: list[subprocess.Popen[bytes]]
    ) -> None:
        self._connections, self.processes = connections, processes
        self.size = len(connections)

    def ask(self, name: str, *arguments: Any, ranks: Sequence[int] | None = None) -> None:
        for rank in range(self.size) if ranks is None else ranks:
            self._connections[rank].send((name, arguments))

    def answer(self, rank: int) -> Any:
        """What a rank gave, the error that it raised, or what it tells on the way."""
        assert self._connections[rank].poll(ANSWER_SECONDS), f"rank {rank} hangs"
        return self._connections[rank].recv()

    def gave(self, name: str, *arguments: Any) -> list[Any]:
        """What every rank gave."""
        self.ask(name, *arguments)
        found = [self.answer(rank) for rank in range(self.size)]
        for rank, one in enumerate(found):
            assert not isinstance(one, Exception), f"rank {rank}: {one!r}"
        return found


@contextmanager
def job(size: int, *before: str, **environment: str) -> Iterator[Job]:
    """before: the words of a command that each rank but the first is started by."""
    key = secrets.token_bytes(16)
    with Listener(("127.0.0.1", 0), authkey=key) as listener, ExitStack() as ending:
        words = [sys.executable, str(WORKER), str(listener.address[1]), key.hex()]
        processes = []
        for rank, place in enumerate(_places(size)):
            command = [*(before if rank else ()), *words]
            one = subprocess.Popen(command, env=os.environ | place | environment)
            ending.callback(_end, one)
            processes.append(one)
        connections: dict[int, Connection] = {}
        while len(connections) < size:
            connection = ending.enter_context(listener.accept())
            connections[connection.recv()] = connection
        yield Job([connections[rank] for rank in range(size)], processes)


def _places(size: int) -> list[dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"DREAM_STALL_SECONDS": STALL_SECONDS, "DREAM_STARTUP_SECONDS": "300"}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)
