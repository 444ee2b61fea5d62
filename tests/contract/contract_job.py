"""Running a cell's cases once, in as many processes as it has ranks."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import contract_hashes
from contract_cells import Cell
from launch_scripts import keras_on

from dream.launch.forks.foresight import IMPORTS
from dream.launch.forks.forked import SERVER, Forked

Rank = subprocess.Popen[bytes] | Forked
WORKER = Path(__file__).with_name("contract_worker.py")
CASE_SECONDS = 300.0  # a case that takes longer hangs
JOB_SECONDS = 1800.0  # on a mesh each layout of a step is compiled
RESTARTS = 4


@dataclass(slots=True)
class Job:
    """What the ranks of one cell left: figures or an error for every case and rank.

    seconds: processor time of each case, on the rank that took most.
    """

    cell: Cell
    outcomes: dict[tuple[str, int], tuple[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    end: str = ""

    def figures(self, case: str, mode: str = "cell") -> list[Any]:
        """A case's figures, in rank order. AssertionError with the ranks' own words where it
        failed or was not reached."""
        name = f"{mode}.{case}"
        outcomes = [self.outcomes.get((name, rank)) for rank in range(self.cell.processes)]
        faults = [
            f"rank {rank}: {'no result' if outcome is None else outcome[1][-1500:]}"
            for rank, outcome in enumerate(outcomes)
            if outcome is None or outcome[0] != "figures"
        ]
        if faults:
            how = f"\nThe job's end:\n{self.end}" if None in outcomes else ""
            raise AssertionError("\n".join([f"{self.cell}, case {name}:", *faults]) + how)
        return [outcome[1] for outcome in outcomes if outcome is not None]

    def reached(self, case: str, rank: int, mode: str = "cell") -> tuple[str, Any]:
        """What one rank left, figures or an error, whatever became of the others."""
        assert (f"{mode}.{case}", rank) in self.outcomes, f"{self.cell}: {self.end}"
        return self.outcomes[f"{mode}.{case}", rank]


def run(cell: Cell, folder: Path, cases: Collection[str] = (), *, fresh: bool = False) -> Job:
    """Run cases of a cell; none named is all. One that takes the ranks down is left out, and the
    job started again for those behind it. fresh: in interpreters of their own, though a fork server
    is there."""
    job = Job(cell)
    done: list[str] = []
    for attempt in range(RESTARTS):
        place = folder / str(attempt)
        place.mkdir(parents=True)
        end = _start(cell, place, done, cases, fresh=fresh)
        begun = _gather(job, place)
        if end == "":
            break
        job.end = end
        if not begun:
            break
        done.extend(begun)
    contract_hashes.record(job)
    return job


def _gather(job: Job, place: Path) -> list[str]:
    """Read what the ranks left; the names of the cases that were begun, in order."""
    for file in place.glob("*.*.[0-9]"):
        name, _, rank = file.name.rpartition(".")
        kind, value, seconds = pickle.loads(file.read_bytes())
        job.outcomes[name, int(rank)] = kind, value
        job.seconds[name] = max(seconds, job.seconds.get(name, 0.0))
    begun = sorted(place.glob("*.begun"), key=lambda file: file.stat().st_mtime)
    return list(dict.fromkeys(file.name.rsplit(".", 2)[0] for file in begun))


def _start(
    cell: Cell, place: Path, done: Sequence[str], cases: Collection[str], *, fresh: bool
) -> str:
    """Run the ranks to their end. Empty where all ended well, else how they ended."""
    command = [str(WORKER), cell.dump(), str(place), str(CASE_SECONDS), *done]
    shared = _environment(cell)
    if fresh:
        shared.pop(SERVER, None)
    if cases:
        shared.setdefault("CONTRACT_ONLY", " ".join(sorted(cases)))
    ranks: list[Rank] = []
    try:
        for rank in range(cell.processes):
            own = {} if cell.processes == 1 else {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (place / f"rank{rank}.log").open("wb") as log:
                ranks.append(_start_rank(command, shared | own, log.fileno()))
        _wait(ranks)
    finally:
        _end(ranks)
    if all(rank.returncode == 0 for rank in ranks):
        return ""
    logs = [
        f"rank {index} ended with {rank.returncode}:\n"
        + (place / f"rank{index}.log").read_text(errors="replace")[-3000:]
        for index, rank in enumerate(ranks)
    ]
    return "\n".join(logs)


def _start_rank(command: list[str], environ: dict[str, str], log: int) -> Rank:
    if SERVER in environ:
        with Path(os.devnull).open("rb") as null:
            return Forked(command, environ, (null.fileno(), log, log), {})
    return subprocess.Popen(
        [sys.executable, *command],
        env=environ,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait(ranks: Sequence[Rank]) -> None:
    """Until all have ended, or one has failed and the others had time to say so too."""
    end = time.monotonic() + JOB_SECONDS
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        if any(rank.poll() for rank in ranks):
            end = min(end, time.monotonic() + 30.0)
        time.sleep(0.01)


def _end(ranks: Sequence[Rank]) -> None:
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


def _environment(cell: Cell) -> dict[str, str]:
    """torchrun's variables, one thread a rank, and Keras's backend."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DREAM_", "HOROVOD_", "TF_", "KERAS_"))
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",  # one for each logical device that waits for another
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "PYTHONFAULTHANDLER": "1",
    }
    if os.environ.get(SERVER):
        environment |= {SERVER: os.environ[SERVER], IMPORTS: cell.framework}
    if "keras" in cell.kind:
        environment |= keras_on(cell.framework)
    if cell.processes > 1:
        environment |= {
            "WORLD_SIZE": str(cell.processes),
            "LOCAL_WORLD_SIZE": str(cell.processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
        }
    return environment


def _free_port() -> int:
    """A port that is free together with the next one, which is where rank 0 serves the ranks'
    store. Below the range that outgoing connections take theirs from."""
    for _ in range(100):
        port = random.randrange(20000, 32000, 2)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise RuntimeError("no two free ports side by side")
