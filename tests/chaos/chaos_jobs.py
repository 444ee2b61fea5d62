"""Jobs that train until a fault ends them, and what became of them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_marks import pid, steps

from dream.launch.forks.forked import SERVER

HERE = Path(__file__).parent
READY_SECONDS, END_SECONDS = 300.0, 120.0
STALL_SECONDS = 6
_CALM = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "DREAM_STALL_SECONDS": str(STALL_SECONDS),
}


@dataclass(frozen=True)
class Kind:
    """What trains. servers: how many of the ranks, the last ones, serve the others."""

    framework: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    ranks: int = 2
    servers: int = 0

    @property
    def workers(self) -> range:
        return range(self.ranks - self.servers)


KINDS = {
    "torch-shared_memory": Kind("torch", "mirrored", {"reduction": "shared_memory"}),
    "torch-gloo": Kind("torch", "mirrored", {"reduction": "gloo"}),
    "torch-horovod": Kind("torch", "horovod"),
    "torch-sharded": Kind("torch", "sharded"),
    "torch-pipeline": Kind("torch", "model_parallel", {"split": "pipeline"}),
    "keras-mirrored": Kind("keras", "mirrored"),
    "keras-horovod": Kind("keras", "horovod"),
    "keras-multi_worker_mirrored": Kind("keras", "multi_worker_mirrored", {"reduction": "grpc"}),
    "keras-parameter_server": Kind(
        "keras", "parameter_server", {"workers": 2, "servers": 1}, ranks=3, servers=1
    ),
}


class Job:
    """`dream run` of one kind, until it has ended. folder: what its ranks share with the test;
    temporary: where it and its ranks make their temporary files. One that several jobs have, one
    after the other, has their ranks forked from one parent."""

    def __init__(
        self, kind: Kind, folder: Path, temporary: Path | None = None, **environ: str
    ) -> None:
        self.kind, self.folder = kind, folder
        self.temporary = temporary or folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        # parents of a fork server have what imports may read alone
        name = "DREAM_TEST_JOB" if environ.get(SERVER, "shared") else "CHAOS_JOB"
        self._mark = {name: secrets.token_hex(16)}
        self._errors = (folder / "stderr").open("w+b")
        script = HERE / ("chaos_torch.py" if kind.framework == "torch" else "chaos_keras.py")
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "dream", "run", "-n", str(kind.ranks), str(script),
             str(folder), kind.strategy, json.dumps(kind.options)],
            env={**os.environ, **_CALM, **environ, **self._mark,
                 "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
            start_new_session=True,
        )  # fmt: skip

    def wait_until_it_trains(self, ranks: Sequence[int] = (), least: int = 3) -> None:
        """Until these workers, or all, have made so many steps more."""
        goals = {r: steps(self.folder, r) + least for r in ranks or self.kind.workers}
        limit = time.monotonic() + READY_SECONDS
        while any(steps(self.folder, rank) < goal for rank, goal in goals.items()):
            assert self.launcher.poll() is None, self.errors
            assert time.monotonic() < limit, f"not training: {self.errors}"
            time.sleep(0.01)

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pid(rank), number)

    def pid(self, rank: int) -> int:
        return pid(self.folder, rank) if rank in self.kind.workers else self._server(rank)

    def order(self, rank: int, what: str) -> None:
        part = self.folder / f"order{rank}.part"
        part.write_text(what)
        part.replace(self.folder / f"order{rank}")

    @property
    def errors(self) -> str:
        """What is on stderr so far."""
        return (self.folder / "stderr").read_text(errors="replace")

    @property
    def processes(self) -> dict[int, str]:
        """All that still run of this job, by their commands. A rank that is forked shows its
        parent's environment, and its own command, with the folder."""
        (wanted,) = [f"{name}={text}".encode() for name, text in self._mark.items()]
        place = os.fsencode(self.folder)
        return {
            int(entry.name): text.decode(errors="replace")
            for entry in Path("/proc").glob("[0-9]*")
            for text in [_text(entry / "cmdline").replace(b"\0", b" ")]
            if place in text or wanted in _text(entry / "environ").split(b"\0")
        }

    @property
    def files(self) -> list[str]:
        """Temporary files and folders of dream's that are there. (Frameworks leave some of their
        own where a process of theirs is killed, whoever started it.)"""
        return sorted(file.name for file in self.temporary.glob("*dream*"))

    def seconds_until_all_is_over(self, since: float) -> float | None:
        """Since a moment of the monotonic clock until no process is there; None where some is
        left after END_SECONDS."""
        limit = time.monotonic() + END_SECONDS
        while self.launcher.poll() is None or self.processes:
            if time.monotonic() > limit:
                return None
            time.sleep(0.02)
        return time.monotonic() - since

    def end(self) -> None:
        """Whatever is left."""
        for number in self.processes:
            with _gone_is_well():
                os.kill(number, signal.SIGKILL)
        self.launcher.wait(END_SECONDS)
        self._errors.close()

    def _server(self, rank: int) -> int:
        """Scripts of servers do not come past the block: the rank's own variable tells."""
        wanted = f"RANK={rank}".encode()
        for number in self.processes:
            if wanted in _text(Path(f"/proc/{number}/environ")).split(b"\0"):
                return number
        raise AssertionError(f"no process of rank {rank}")


@contextmanager
def started(kind: Kind, temporary: Path | None = None, **environ: str) -> Iterator[Job]:
    """A job that trains; nothing of it is left after the block."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        job = Job(kind, Path(folder), temporary, **environ)
        try:
            job.wait_until_it_trains()
            assert {pid(job.folder, rank) for rank in kind.workers} <= job.processes.keys()
            yield job
        finally:
            job.end()


@contextmanager
def _gone_is_well() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return


def _text(file: Path) -> bytes:
    """Of a process; nothing where it is gone, or is another user's."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
