"""Scripts for ranks, and the means to run them. No rank here imports a framework."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dream.launch.ending import Outcome
from dream.launch.forks.foresight import IMPORTS
from dream.launch.forks.forked import SERVER, Forked
from dream.launch.job import Job
from dream.launch.start import Listen, run

HEAD = """
import os, sys, time, signal, subprocess
rank = int(os.environ['RANK'])

def mark(name):
    with open(f'{sys.argv[0]}.part.{rank}', 'w') as file: file.write(str(os.getpid()))
    os.rename(f'{sys.argv[0]}.part.{rank}', f'{sys.argv[0]}.{name}')

def wait_for_mark(name):
    while not os.path.exists(f'{sys.argv[0]}.{name}'): time.sleep(0.01)
    return open(f'{sys.argv[0]}.{name}').read()

def wait_for_end_of(pid):
    stat = f'/proc/{pid}/stat'
    try:
        while open(stat).read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.01)
    except (FileNotFoundError, ProcessLookupError):
        pass
"""
DREAM = (sys.executable, "-m", "dream")


ON_TORCH: dict[str, Any] = {"framework": "torch", "timeout": 300}
"""For `dream.launch`."""


def keras_on(backend: str) -> dict[str, str]:
    """Variables of a function's ranks. Whatever the backend, keras.utils.set_random_seed imports
    TensorFlow: the parent that they are forked from has done so."""
    backends = "torch,keras,tensorflow" if backend == "torch" else "tensorflow,keras"
    return {"KERAS_BACKEND": backend, IMPORTS: backends}


def write(folder: Path, body: str) -> str:
    script = folder / "script.py"
    script.write_text(HEAD + body)
    return str(script)


def outcome(folder: Path, body: str, *, n: int = 2, env: Mapping[str, str] | None = None,
            timeout: float = 300, listen: Listen = nullcontext, **settings: object,
            ) -> Outcome:  # fmt: skip
    """How ranks that run `body` end, started in this process."""
    job = Job(
        command=("script", write(folder, body)),
        n=n,
        timeout=timeout,
        environ={**os.environ, **(env or {})},
        **settings,  # type: ignore[arg-type]
    )
    return run(job, listen)


def dream(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run(
        [*DREAM, *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@contextmanager
def launched(
    *arguments: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The command, running while the block lasts."""
    with start(*arguments, env=env) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def start(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """The command, left running."""
    return subprocess.Popen(
        [*DREAM, *arguments],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_alone(
    command: Sequence[str], imports: str, said: Path, env: Mapping[str, str]
) -> Forked | subprocess.Popen[bytes]:
    """Start a script without a launcher, forked where a server is there. imports: what it will
    import. said: where its output goes, with .out and .err."""
    with (
        Path(os.devnull).open("rb") as null,
        said.with_suffix(".out").open("wb") as out,
        said.with_suffix(".err").open("wb") as err,
    ):
        if SERVER in env:
            files = (null.fileno(), out.fileno(), err.fileno())
            return Forked(command, {**env, IMPORTS: imports}, files, {})
        line = [sys.executable, *command]
        return subprocess.Popen(line, env=env, stdin=null, stdout=out, stderr=err)


def alone(
    command: Sequence[str], imports: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A script without a launcher, to its end; as `start_alone`."""
    with TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        code = start_alone(command, imports, said, {**os.environ, **(env or {})}).wait()
        out, err = (said.with_suffix(end).read_text() for end in (".out", ".err"))
    return subprocess.CompletedProcess(command, code, out, err)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def wait_for(files: list[Path], seconds: float = 120) -> None:
    """Until ranks have written their files."""
    limit = time.monotonic() + seconds
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < limit, f"none of {files}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 120) -> bool:
    """Whether processes that nobody awaits end, which by themselves they would much later."""
    limit = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def row_of_ports(count: int) -> list[int]:
    """Free ones in a row, and two above them for rank 0's own."""
    for _ in range(50):
        with socket.create_server(("127.0.0.1", 0)) as found:
            first = found.getsockname()[1]
        row = range(first, first + count + 2)
        try:
            for port in row:
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return list(row)[:count]
    raise AssertionError("no ports")
