"""Where another rank reaches this one: a port of its own, and the word that it gives out over the
job's rendezvous, which in turn wants the job's token."""

from __future__ import annotations

import select
import socket
from typing import final

from dream._topology import Cluster
from dream.cluster.exchange import found, own_listener, post, posted
from dream.cluster.greeting import Welcome, expect, greet, new_word

_KNOCK_SECONDS = 10.0


@final
class Door:
    """On loopback, unless the job has hosts. kind: what is behind it, by which others ask for it;
    a rank has one of a kind."""

    def __init__(self, place: Cluster, kind: str, welcome: Welcome) -> None:
        word = new_word()
        listener = own_listener(place)
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


def listens(place: Cluster, kind: str, rank: int) -> bool:
    """Whether somebody may be behind a rank's door: False where it had one and nobody is. (A host
    that is cut off may have somebody.)"""
    told = found(place, f"{kind}/{rank}")
    if told is None:
        return True
    host, port, _ = told.decode().split()
    try:
        socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def readable(connection: socket.socket, seconds: float) -> bool:
    """Whether something can be read, waited for: whatever the number of the descriptor, with which
    `select.select` has its difficulties."""
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    return bool(ready.poll(seconds * 1000))
