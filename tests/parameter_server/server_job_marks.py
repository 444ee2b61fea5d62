"""Files that decide the order in which ranks of a job under test come so far."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MODES = ("kill", "stop", "server")


class Uneven:
    """Rank 1 holds its first batch until rank 0 has as many as it may have by then. Both call
    `begin_batch` in each batch. far: how many."""

    def __init__(self, folder: str, rank: int, far: int) -> None:
        self._held, self._far = Path(folder) / "held", Path(folder) / "far"
        self._rank, self._batches, self._most = rank, 0, far

    def begin_batch(self) -> None:
        self._batches += 1
        if self._rank == 0:
            _wait_for(self._held)
            if self._batches == self._most:
                self._far.touch()
        elif self._batches == 1:
            self._held.touch()
            _wait_for(self._far)
            time.sleep(0.2)  # for one that would go further


class Faults:
    """Rank 1 goes wrong in its fourth batch, while rank 0 is in its fourth.

    mode: whether rank 1 is killed, is stopped, or kills the server, which is rank 2.
    """

    def __init__(self, mode: str, folder: Path, rank: int) -> None:
        assert mode in MODES
        self._mode, self._folder, self._rank = mode, folder, rank
        self._again = self._there("once")
        self._own = folder / f"pid{rank}"
        self._own.write_text(str(os.getpid()))
        self._batches = 0

    def begin_batch(self) -> None:
        """Everything goes wrong once; who comes back is waited for."""
        self._batches += 1
        if self._again:
            self._mark("back")
        elif self._batches == 4 and self._rank == 0:
            self._mark("three")
            self._wait_for("once")
            self._wait_for_what_follows()
        elif self._batches == 4 and self._rank == 1:
            self._wait_for("three")
            self._mark("once")
            self._go_wrong()

    def _go_wrong(self) -> None:
        if self._mode == "server":
            os.kill(self._server, signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGKILL if self._mode == "kill" else signal.SIGSTOP)

    def _wait_for_what_follows(self) -> None:
        if self._mode == "server":
            while _runs(self._server):
                time.sleep(0.01)
        elif self._mode == "kill":
            self._wait_for("back")

    @property
    def _server(self) -> int:
        return int((self._folder / "pid2").read_text())

    def _mark(self, name: str) -> None:
        (self._folder / name).touch()

    def _there(self, name: str) -> bool:
        return (self._folder / name).exists()

    def _wait_for(self, name: str) -> None:
        _wait_for(self._folder / name)


def meet(folder: str, rank: int, ranks: int) -> None:
    """Return once all are here."""
    (Path(folder) / f"here{rank}").touch()
    for other in range(ranks):
        _wait_for(Path(folder) / f"here{other}")


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
