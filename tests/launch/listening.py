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
) -> Iterator[list[subprocess.Popen[str]]]:
    """What the commands start, at a moment when two ranks have connected. It must end well; what it
    said is then in FILE.said."""
    asked = [str(SCRIPT), str(file), *words]
    jobs = [
        subprocess.Popen(
            [*command, *asked], env=os.environ | QUIET | dict(environ or {}), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for command in commands
    ]  # fmt: skip
    try:
        limit = time.monotonic() + MINUTES
        while not all(Path(f"{file}.{rank}").exists() for rank in (0, 1)):
            for job in jobs:
                assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < limit
            time.sleep(0.05)
        yield jobs
        Path(f"{file}.go").touch()
        said = [job.communicate(timeout=MINUTES)[0] for job in jobs]
        assert [job.returncode for job in jobs] == [0] * len(jobs), said
        Path(f"{file}.said").write_text("\n".join(said))
    finally:
        Path(f"{file}.go").touch()
        for job in jobs:
            job.terminate()
            job.communicate()


def seen(jobs: list[subprocess.Popen[str]]) -> set[Listener]:
    return listeners(pid for job in jobs for pid in family(job.pid))


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("", 0)) for _ in range(count)]
    found: list[int] = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found
