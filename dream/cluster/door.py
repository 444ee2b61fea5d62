"""Where another rank reaches this one: a port of its own, and the word that it gives out over the
job's rendezvous, which in turn wants the job's token."""

from __future__ import annotations

import socket
from typing import final

from dream._topology import Cluster
from dream.cluster.exchange import own_host, post, posted
from dream.cluster.greeting import Welcome, expect, greet, new_word


@final
class Door:
    """On loopback, unless the job has hosts. kind: what is behind it, by which others ask for it;
    a rank has one of a kind."""

    def __init__(self, place: Cluster, kind: str, welcome: Welcome) -> None:
        word = new_word()
        listener = socket.create_server((own_host(place), 0), backlog=128)
        host, port = listener.getsockname()[:2]
        self._entrance = expect(listener, word, welcome, f"dream-{kind}")
        post(place, f"{kind}/{place.rank}", f"{host} {port} {word}".encode())

    def close(self) -> None:
        """Connections that were made stay."""
        self._entrance.close()


def knock(place: Cluster, kind: str, rank: int, purpose: str, seconds: float) -> socket.socket:
    """A connection to a rank's door. OSError where it is gone."""
    host, port, word = posted(place, f"{kind}/{rank}").decode().split()
    connection = socket.create_connection((host, int(port)), seconds)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(connection, word, place.rank, purpose)
    except OSError:
        connection.close()
        raise
    return connection
