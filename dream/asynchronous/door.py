"""How a worker comes to a server: it must know the word that the server gave out over the job's
rendezvous, which in turn wants the job's token."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from typing import Literal, final

from dream import cluster
from dream._errors import WorkerFailed
from dream._topology import Cluster
from dream.asynchronous.frames import Channel

_HELLO = struct.Struct("<32sIB")
_HELLO_SECONDS = 10.0
Purpose = Literal["work", "beat", "watch"]
_PURPOSES: tuple[Purpose, ...] = ("work", "beat", "watch")

Welcome = Callable[[int, Purpose, Channel], None]
"""Called with the rank that came, what it came for, and the connection, in a thread of its own."""


@final
class Door:
    """Where a server is reached: on loopback, unless the job has hosts."""

    def __init__(self, place: Cluster, welcome: Welcome) -> None:
        self._word = secrets.token_hex(16).encode()
        self._welcome = welcome
        self._listener = cluster.own_listener(place)
        threading.Thread(target=self._accept, name="dream-door", daemon=True).start()
        host, port = self._listener.getsockname()[:2]
        self.address = (str(host), int(port))
        cluster.post(
            place, f"servers/{place.rank}", f"{host} {port} {self._word.decode()}".encode()
        )

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=[connection], daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(_HELLO_SECONDS)
        channel = Channel(connection)
        said = bytearray(_HELLO.size)
        try:
            channel.receive_into(memoryview(said))
        except OSError:
            channel.close()
            return
        word, rank, purpose = _HELLO.unpack(said)
        if not hmac.compare_digest(word, self._word) or purpose >= len(_PURPOSES):
            channel.close()
            return
        channel.settimeout(None)
        self._welcome(rank, _PURPOSES[purpose], channel)


def knock(place: Cluster, server: int, purpose: Purpose, seconds: float) -> Channel:
    """A connection to a server's rank. WorkerFailed where it is gone."""
    host, port, word = cluster.posted(place, f"servers/{server}").decode().split()
    try:
        channel = Channel(socket.create_connection((host, int(port)), seconds))
        channel.send_bytes(_HELLO.pack(word.encode(), place.rank, _PURPOSES.index(purpose)))
    except OSError as error:
        raise gone(server) from error
    return channel


def gone(server: int) -> WorkerFailed:
    return WorkerFailed(
        f"The server of rank {server} is gone, and the parameters with it. Received: its "
        "connection closed. Look at that rank's own message; `snapshot_every=` and `dream run "
        "--max-restarts` let training go on from a snapshot.",
        rank=server,
    )
