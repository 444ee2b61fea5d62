"""How a worker comes to a server, and one server to another."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Literal, final, get_args

from dream import cluster
from dream._errors import WorkerFailed
from dream._topology import Cluster
from dream.parameter_server.frames import Channel

_KIND = "servers"
Purpose = Literal["work", "beat", "watch"]

Welcome = Callable[[int, Purpose, Channel], None]
"""Called with the rank that came, what it came for, and the connection, in a thread of its own."""


@final
class Door:
    """Of a server. ranks: those that have business here."""

    def __init__(self, place: Cluster, ranks: range, welcome: Welcome) -> None:
        self._ranks, self._welcome = ranks, welcome
        self._door = cluster.Door(place, _KIND, self._admit)

    def close(self) -> None:
        self._door.close()

    def _admit(self, rank: int, purpose: str, connection: socket.socket) -> None:
        if rank not in self._ranks or purpose not in get_args(Purpose):
            connection.close()
            return
        channel = Channel(connection)
        threading.Thread(target=self._welcome, args=[rank, purpose, channel], daemon=True).start()


def knock(place: Cluster, server: int, purpose: Purpose, seconds: float) -> Channel:
    """A connection to a server's rank. WorkerFailed where it is gone."""
    try:
        return Channel(cluster.knock(place, _KIND, server, purpose, seconds))
    except OSError as error:
        raise gone(server) from error


def gone(server: int) -> WorkerFailed:
    return WorkerFailed(
        f"The server of rank {server} is gone, and the parameters with it. Received: its "
        "connection closed. Look at that rank's own message; `snapshot_every=` and `dream run "
        "--max-restarts` let training go on from a snapshot.",
        rank=server,
    )
