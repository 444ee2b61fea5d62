"""Ranks without a launcher, that train a script's model together; and what a test does to them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LIMIT = 240.0
"""Seconds, for a slow machine."""

QUIET = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "DREAM_STARTUP_SECONDS": "200",
}


class Job:
    """folder: where the ranks leave marks, and their output."""

    def __init__(self, script: Path, arguments: tuple[str, ...], size: int, hosts: int,
                 folder: Path, environ: dict[str, str]) -> None:  # fmt: skip
        self.folder: Final = folder
        self.size = size
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        here = size // hosts
        common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(here)}
        common |= {"DREAM_TOKEN": "of-this-test"} if hosts > 1 else {}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **QUIET, **environ}
        self.ranks = []
        for rank in range(size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank % here)}
            with (folder / f"out{rank}").open("w") as out:
                one = subprocess.Popen(
                    [sys.executable, str(script), str(folder), *arguments],
                    env=os.environ | common | place, stdout=out, stderr=subprocess.STDOUT,
                )  # fmt: skip
            self.ranks.append(one)

    def said(self, rank: int) -> str:
        return (self.folder / f"out{rank}").read_text()

    def signal(self, rank: int, number: signal.Signals) -> None:
        self.ranks[rank].send_signal(number)

    def mark(self, name: str) -> None:
        """Let the ranks know."""
        (self.folder / name).touch()

    def wait_for_mark(self, name: str) -> None:
        self._until(lambda: (self.folder / name).exists(), name)

    def wait_for_words(self, rank: int, words: str) -> str:
        self._until(lambda: words in self.said(rank), words)
        return self.said(rank)

    def ended(self, rank: int) -> int:
        return self.ranks[rank].wait(LIMIT)

    def _until(self, come: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT
        while not come():
            told = "\n".join(map(self.said, range(self.size)))
            assert time.monotonic() < end, f"no {what}:\n{told}"
            time.sleep(0.02)


@contextmanager
def job(
    script: str, *arguments: str, folder: Path, size: int = 2, hosts: int = 1, **environ: str
) -> Iterator[Job]:
    """hosts: how many the ranks take themselves to be on."""
    made = Job(Path(__file__).with_name(script), arguments, size, hosts, folder, environ)
    try:
        yield made
    finally:
        for one in made.ranks:
            one.kill()
            one.wait(60)
