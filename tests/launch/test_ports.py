"""What a job listens on, seen from outside: where, in which range, and for whom."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from open_ports import Listener, family, listeners

SCRIPT = Path(__file__).with_name("listening_job.py")
DREAM = (sys.executable, "-m", "dream", "run", "-n")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")
QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
MINUTES = 5 * 60.0
NOBODY = 65534

TORCH = ("torch", "mirrored", "reduction=gloo")
TENSORFLOW = ("tensorflow", "mirrored", "reduction=grpc")
TORCHES = ("torch", "collectives", "gloo", "shared_memory", "hierarchical", "horovod")
MANY = [
    TORCHES,
    ("torch", "sharded"),
    ("torch", "model_parallel", "split=pipeline"),
    ("torch", "local_sgd", "every=2"),
    ("torch", "parameter_server"),
    ("tensorflow", "collectives", "grpc", "horovod"),
    ("tensorflow", "sharded"),
    ("tensorflow", "parameter_server"),
]


def named(words: tuple[str, ...]) -> str:
    return "-".join(words)


@contextmanager
def running(
    commands: list[list[str]],
    file: Path,
    words: tuple[str, ...],
    environ: Mapping[str, str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """What the commands start, at a moment when two ranks have connected; it must end well."""
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
    finally:
        Path(f"{file}.go").touch()
        for job in jobs:
            job.terminate()
            job.communicate()


def seen(jobs: list[subprocess.Popen[str]]) -> set[Listener]:
    return listeners(pid for job in jobs for pid in family(job.pid))


def ranks_of(words: tuple[str, ...]) -> str:
    return "3" if "parameter_server" in words else "2"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [TORCH, TENSORFLOW, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in MANY)],
    ids=named,
)
def test_on_one_host(words: tuple[str, ...], tmp_path: Path) -> None:
    """Everything listens on loopback and in the range, and takes this user's processes alone."""
    low = free_ports(1)[0] // 100 * 100
    command = [*DREAM, ranks_of(words), "--port-range", f"{low}-{low + 99}"]
    with running([command], tmp_path / "job", words) as (job,):
        found, ranks = seen([job]), listeners(family(job.pid) - {job.pid})
        shut_out = {one: closed_at_once(one, NOBODY) for one in ranks} if is_root() else {}
        taken = {one: not closed_at_once(one, 0) for one in ranks} if is_root() else {}
    assert found
    assert [one for one in found if not one.on_loopback] == []
    assert [one for one in found if not low <= one.port <= low + 99] == []
    assert all(shut_out.values()), shut_out
    assert all(taken.values()), taken


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [TORCH, TENSORFLOW], ids=named)
def test_under_torchrun(words: tuple[str, ...], tmp_path: Path) -> None:
    with running([[*TORCHRUN, "2"]], tmp_path / "job", words) as (torchrun,):
        found = listeners(family(torchrun.pid) - {torchrun.pid})  # it listens everywhere itself
    assert found
    assert [one for one in found if not one.on_loopback] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["names", "TF_CONFIG"])
@pytest.mark.parametrize("words", [TORCH, TENSORFLOW], ids=named)
def test_by_hand(by: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """Under the host's own name too, by which others know it."""
    master, store, *workers = free_ports(4)
    names = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname(),
             "MASTER_PORT": str(master), "DREAM_RENDEZVOUS_PORT": str(store)}  # fmt: skip
    commands = []
    for rank in range(2):
        own = {**names, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        if by == "TF_CONFIG":
            cluster = {"worker": [f"{socket.gethostname()}:{port}" for port in workers]}
            task = {"type": "worker", "index": rank}
            own = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
        told = [f"{name}={value}" for name, value in own.items()]
        commands.append(["env", *told, sys.executable])
    environ = {"DREAM_TOKEN": secrets.token_hex(16)}
    with running(commands, tmp_path / "job", words, environ) as jobs:
        found = seen(jobs)
    assert found
    assert [one for one in found if not one.on_loopback] == []


def is_root() -> bool:
    """Whether this process can be another user."""
    return os.geteuid() == 0


def closed_at_once(there: Listener, user: int) -> bool:
    """Whether a socket of this user is shut out, though it says nothing wrong."""
    os.seteuid(user)
    try:
        one = socket.socket()
    finally:
        os.seteuid(0)
    with one:
        one.settimeout(MINUTES if user else 0.5)
        one.connect(("127.0.0.1", there.port))
        try:
            return one.recv(1 << 10) == b"" if user else until_silent(one)
        except ConnectionError:
            return True


def until_silent(one: socket.socket) -> bool:
    """Whether it is closed before nothing comes any more: gRPC greets."""
    try:
        while one.recv(1 << 10):
            pass
    except TimeoutError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("", 0)) for _ in range(count)]
    found: list[int] = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found
