"""Wait until every rank of a cluster is there, before TensorFlow waits for them without end.

Each rank listens on its own endpoint and knocks at the others', until all have answered; then
the endpoints are TensorFlow's.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dream import cluster
from dream._errors import ConfigurationError, WorkerFailed
from dream._topology import Endpoint

_PAUSE = 0.05
_KNOCK_TIMEOUT = 2.0


def wait_for_all(workers: Sequence[Endpoint], rank: int, timeout: float) -> None:
    """Return once every rank's endpoint answers; raise `WorkerFailed` naming those that do not."""
    missing = [other for other in range(len(workers)) if other != rank]
    deadline = time.monotonic() + timeout
    with _listening(workers[rank], rank):
        while True:
            missing = [other for other in missing if not _answers(workers[other])]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise _never_came(missing, workers, timeout)
            time.sleep(_PAUSE)


@contextmanager
def _listening(own: Endpoint, rank: int) -> Iterator[None]:
    """The rank's own port, answered by the kernel: nobody has to accept a knock."""
    try:
        server = cluster.listener_at(cluster.local_address(own.host) or "", own.port)
    except OSError as error:
        raise ConfigurationError(
            f"The port of rank {rank} is taken. Received: {own} ({error.strerror}). Give the "
            "cluster free ports, or let `dream run` choose them."
        ) from error
    with server:
        yield


def _answers(peer: Endpoint) -> bool:
    try:
        socket.create_connection((peer.host, peer.port), _KNOCK_TIMEOUT).close()
    except OSError:
        return False
    return True


def _never_came(
    missing: Sequence[int], workers: Sequence[Endpoint], timeout: float
) -> WorkerFailed:
    who = ", ".join(f"rank {other} ({workers[other]})" for other in missing)
    return WorkerFailed(
        f"Not every rank started. Received: no answer within {timeout:g} s from {who}. Start every "
        "rank with the same cluster, and look at the missing ranks' logs."
    )
