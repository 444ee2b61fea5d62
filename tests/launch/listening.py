"""Jobs that stand still while a test looks at what they listen on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from open_ports import Listener, family, listeners

SCRIPT = Path(__file__).with_name("listening_job.py")
DREAM = (sys.executable, "-m", "dream", "run", "-n")
QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
APART = {"DREAM_FORK_SERVER": ""}  # whose ranks would be nobody's descendants
MINUTES = 5 * 60.0

TORCH = ("torch", "mirrored", "reduction=gloo")
TENSORFLOW = ("tensorflow", "mirrored", "reduction=grpc")


def named(words: tuple[str, ...]) -> str:
    return "-".join(words)


@contextmanager
def running(
    commands: list[list[str]],
    file: Path,
    words: tuple[str, ...],
    environ: Mapping[str, str] | None = None,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """What the commands start, at a moment when two ranks have connected. It must end well; what it
    said is then in FILE.said."""
    said = Path(f"{file}.said")
    with said.open("w") as output:
        jobs = [
            subprocess.Popen(
                [*command, str(SCRIPT), str(file), *words],
                env=os.environ | QUIET | APART | dict(environ or {}), stdout=output, stderr=output,
            )
            for command in commands
        ]  # fmt: skip
    try:
        limit = time.monotonic() + MINUTES
        while not all(Path(f"{file}.{rank}").exists() for rank in (0, 1)):
            assert all(job.poll() is None for job in jobs), said.read_text()
            assert time.monotonic() < limit, said.read_text()
            time.sleep(0.05)
        yield jobs
        Path(f"{file}.go").touch()
        assert [job.wait(MINUTES) for job in jobs] == [0] * len(jobs), said.read_text()
    finally:
        Path(f"{file}.go").touch()
        for job in jobs:
            job.terminate()
            job.wait()


def seen(jobs: list[subprocess.Popen[bytes]]) -> set[Listener]:
    return listeners(pid for job in jobs for pid in family(job.pid))


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("", 0)) for _ in range(count)]
    found: list[int] = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found
