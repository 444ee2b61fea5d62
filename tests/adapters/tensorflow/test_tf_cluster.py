"""TensorFlow's cluster: peers are waited for, and SIGTERM stays the script's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from types import ModuleType

import pytest
from launch_scripts import keras_on

from dream import ConfigurationError, WorkerFailed
from dream._topology import Endpoint

SCRIPT = """
import os, signal, sys, time

def save(*_):
    print("saved", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, save)
import tensorflow
import dream

with dream.strategy("mirrored", reduction="grpc", framework="tensorflow"):
    open(sys.argv[1] + os.environ["RANK"], "w").close()
    while True:
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster() -> ModuleType:
    from dream.adapters.tensorflow import cluster

    return cluster


def free(count: int) -> list[Endpoint]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return [Endpoint("127.0.0.1", port) for port in ports]


def test_all_come(cluster: ModuleType) -> None:
    workers = free(4)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(come, cluster, workers, rank) for rank in range(4)]
        for server in [call.result() for call in calls]:
            server.close()


def come(cluster: ModuleType, workers: list[Endpoint], rank: int) -> socket.socket:
    """A rank that serves its port once all have come, as TensorFlow does."""
    cluster.wait_for_all(workers, rank, 100.0)
    return socket.create_server((workers[rank].host, workers[rank].port))


def test_those_that_never_start_are_named(
    cluster: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do start listen before either asks, and until both have given up."""
    both, listening = Barrier(2), cluster._listening

    @contextmanager
    def together(own: Endpoint, rank: int) -> Iterator[None]:
        with listening(own, rank):
            both.wait(100)
            try:
                yield
            finally:
                both.wait(100)

    monkeypatch.setattr(cluster, "_listening", together)
    workers = free(4)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(cluster.wait_for_all, workers, rank, 0.4) for rank in (0, 2)]
        for call in calls:
            with pytest.raises(WorkerFailed, match=r"rank 1 .*rank 3 .*Start every rank") as found:
                call.result()
            assert "rank 0" not in str(found.value)


def test_a_port_that_another_has_is_named(cluster: ModuleType) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = Endpoint("127.0.0.1", other.getsockname()[1])
        with pytest.raises(ConfigurationError, match=f"port of rank 1 is taken.*{taken}"):
            cluster.wait_for_all([free(1)[0], taken], 1, 1.0)


@pytest.mark.slow
def test_a_script_saves_what_it_has(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "dream", "run", "-n", "2", "--grace", "60", "--all-output"]
    with subprocess.Popen(
        [*command, str(script), str(tmp_path / "ready")],
        stdout=subprocess.PIPE, text=True, env=os.environ | keras_on("tensorflow"),
    ) as job:  # fmt: skip
        while job.poll() is None and not all((tmp_path / f"ready{r}").exists() for r in (0, 1)):
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        out, _ = job.communicate(timeout=300)
    assert job.returncode == 143
    assert sorted(line for line in out.splitlines() if "saved" in line) == [
        "[0] saved",
        "[1] saved",
    ]
