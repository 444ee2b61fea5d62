"""What no test may leave behind: processes it started, and variables that launchers read. And how
patient tests are: as long as the slowest machine needs."""

from __future__ import annotations

import contextlib
import gc
import getpass
import os
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dream.cluster.settings import WARM
from dream.launch.forks.forked import SERVER, serving

_READ_BY_DREAM = ("DREAM_", "HOROVOD_", "MASTER_", "KERAS_BACKEND", "TF_CONFIG", "RANK", "LOCAL_")
_READ_BY_DREAM += ("WORLD_SIZE", "GROUP_", "OMP_NUM_THREADS")
# On a machine that is slow, or busy with other work, ranks may come minutes apart. Tests of ranks
# that never come set a time of their own.
os.environ.setdefault("DREAM_STARTUP_SECONDS", "300")
os.environ.setdefault("DREAM_STALL_SECONDS", "300")
# Threads that spin take the cores from other ranks; and jobs of one rank and of several have the
# same environment, so that a fork server's parent serves both.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# What `dream run` sets for its ranks, and torch where it compiles: with them set for all, scripts
# alone, ranks, and those that start after a test has used torch are forked from one parent.
_ALIKE = {
    "PYTHONHASHSEED": "0",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
    "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}",
}
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

_OF_PYTHONS_OWN = (b"resource_tracker", b"forkserver")
_FORK_SERVER = b"fork_server.py server"


def pytest_configure(config: pytest.Config) -> None:
    if not _fresh(config):
        for name, text in _ALIKE.items():
            os.environ.setdefault(name, text)


def _fresh(config: pytest.Config) -> bool:
    """Whether every rank starts in an interpreter of its own."""
    return bool(config.option.markexpr == "exhaustive")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("ring") and not find_spec("horovod"):
        pytest.skip("no ring is built: dream build-horovod")


@pytest.fixture(autouse=True, scope="session")
def _fork_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ranks whose framework is known are forked from a parent that has
    imported it. `make exhaustive`, or DREAM_FORK_SERVER set to nothing, starts each of them fresh.
    """
    fresh = _fresh(request.config)
    if fresh:
        os.environ.setdefault(WARM, "0")
    if fresh or SERVER in os.environ or not hasattr(os, "pidfd_open"):
        yield
        return
    with serving() as server:
        os.environ[SERVER] = server
        yield
        del os.environ[SERVER]


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """A variable that one test leaves would place the next one in a job that is not there."""
    before = _variables()
    yield
    after = _variables()
    assert after == before, f"left in the environment: {after.items() ^ before.items()}"


@pytest.fixture(autouse=True, scope="module")
def _processes_end() -> Iterator[None]:
    """A module's tests may share processes; after its last test none of them is there."""
    gc.freeze()  # a block looks through all that is there; nothing of pytest's is of a script
    before = _pids()  # one that has just begun has no command line yet
    yield
    end = time.monotonic() + 60.0
    while (left := _children() - before) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"left running: {sorted(map(_command, left))}"


def _variables() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith(_READ_BY_DREAM)}


def _children() -> set[int]:
    """Those that still run: zombies, Python's helpers and a fork server's parents do not count."""
    return {pid for pid in _pids() if (text := _command(pid)) and not _pythons(text)}


def _pids() -> set[int]:
    """This process's own children, and the ranks that its fork server forked."""
    found = _children_of(os.getpid())
    servers = {pid for pid in found if _FORK_SERVER in _command(pid)}
    parents = {parent for server in servers for parent in _children_of(server)}
    found |= {rank for parent in parents for rank in _children_of(parent)}
    return found - servers


def _children_of(pid: int) -> set[int]:
    lists = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            lists.append(file.read_text())
    return {int(child) for text in lists for child in text.split()}


def _pythons(command: bytes) -> bool:
    return any(word in command for word in _OF_PYTHONS_OWN)


def _command(pid: int) -> bytes:
    """A process's command line; empty where it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:200]
    except OSError:
        return b""
