"""What a job listens on, seen from outside: where, in which range, and for whom."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from pathlib import Path

import pytest
from listening import DREAM, MINUTES, TENSORFLOW, TORCH, free_ports, named, running, seen
from open_ports import Listener, family, listeners

from dream.cluster.ports import own_address

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")
NOBODY = 65534
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
        strangers = [(one, own) for one in ranks for own in ("", *own_addresses())]
        shut_out = {each: closed_at_once(*each, NOBODY) for each in strangers if is_root()}
        taken = {one: not closed_at_once(one, "", 0) for one in ranks} if is_root() else {}
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


def own_addresses() -> list[str]:
    """One by which other hosts know this one, from which loopback can be reached too."""
    try:
        return [own_address("192.0.2.1")]  # of nobody: it only picks the route
    except OSError:
        return []


def closed_at_once(there: Listener, own: str, user: int) -> bool:
    """Whether a socket of this user is shut out, though it says nothing wrong. own: the address
    that it comes from, loopback where it is empty."""
    os.seteuid(user)
    try:
        one = socket.socket()
    finally:
        os.seteuid(0)
    with one:
        if own:
            one.bind((own, 0))
        one.settimeout(MINUTES if user else 0.5)
        one.connect(("127.0.0.1", there.port))
        try:
            return one.recv(1 << 10) == b"" if user else until_silent(one)
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def until_silent(one: socket.socket) -> bool:
    """Whether it is closed before nothing comes any more: gRPC greets."""
    try:
        while one.recv(1 << 10):
            pass
    except TimeoutError:
        return False
    return True
