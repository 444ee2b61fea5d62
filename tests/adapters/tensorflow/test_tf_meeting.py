"""Waiting for peers; no TensorFlow in it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from types import ModuleType

import pytest

from dream import ConfigurationError, WorkerFailed
from dream._topology import Endpoint


@pytest.fixture(scope="module")
def meeting() -> ModuleType:
    from dream.adapters.tensorflow import cluster as meeting

    return meeting


def free(count: int) -> list[Endpoint]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return [Endpoint("127.0.0.1", port) for port in ports]


def test_all_come(meeting: ModuleType) -> None:
    workers = free(4)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(come, meeting, workers, rank) for rank in range(4)]
        for server in [call.result() for call in calls]:
            server.close()


def come(meeting: ModuleType, workers: list[Endpoint], rank: int) -> socket.socket:
    """A rank that serves its port once all have come, as TensorFlow does."""
    meeting.wait_for_all(workers, rank, 100.0)
    return socket.create_server((workers[rank].host, workers[rank].port))


def test_those_that_never_start_are_named(
    meeting: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do start listen before either asks, and until both have given up."""
    both, listening = Barrier(2), meeting._listening

    @contextmanager
    def together(own: Endpoint, rank: int) -> Iterator[None]:
        with listening(own, rank):
            both.wait(100)
            try:
                yield
            finally:
                both.wait(100)

    monkeypatch.setattr(meeting, "_listening", together)
    workers = free(4)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(meeting.wait_for_all, workers, rank, 0.4) for rank in (0, 2)]
        for call in calls:
            with pytest.raises(WorkerFailed, match=r"rank 1 .*rank 3 .*Start every rank") as found:
                call.result()
            assert "rank 0" not in str(found.value)


def test_a_port_that_another_has_is_named(meeting: ModuleType) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = Endpoint("127.0.0.1", other.getsockname()[1])
        with pytest.raises(ConfigurationError, match=f"port of rank 1 is taken.*{taken}"):
            meeting.wait_for_all([free(1)[0], taken], 1, 1.0)
