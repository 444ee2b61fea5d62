"""Connections between ranks, each for one direction and purpose, made when first used.

A rank listens on its own address; who wants to send connects, says the word that the listener
gave out over the rendezvous, and who it is.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
import threading
from functools import cache, partial
from typing import final

from dream import cluster, stall
from dream._errors import Desynchronized, DreamError, WorkerFailed
from dream._topology import Cluster
from dream.communication.wait import Wait

_HELLO = struct.Struct("<32sIH")
_HELLO_SECONDS = 10.0


@final
class Links:
    """This rank's connections.

    Ranks are the job's. A channel is a name that keeps apart what is sent for different ends;
    what is sent on one arrives in order.
    """

    def __init__(self, place: Cluster, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        self._word = secrets.token_hex(16).encode()
        self._out: dict[tuple[int, str], socket.socket] = {}
        self._in: dict[tuple[int, str], socket.socket] = {}
        self._came = threading.Condition()
        self._listener = socket.create_server((cluster.own_host(place), 0), backlog=128)
        host, port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="dream-links", daemon=True).start()
        cluster.post(place, f"links/{place.rank}", f"{host} {port} {self._word.decode()}".encode())

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def seconds(self) -> float:
        """How long a rank that is stuck is waited for."""
        return self._seconds

    def send(self, to: int, channel: str, *parts: bytes | bytearray | memoryview) -> None:
        """All of the parts, in order. `WorkerFailed` where the rank is gone."""
        connection = self._outgoing(to, channel)
        try:
            with self.wait("send()", to) as wait:
                for part in parts:
                    view = memoryview(part)
                    while view:
                        view = view[wait.act(connection, partial(connection.send, view)) :]
        except TimeoutError as error:
            raise self.late(to, "took what was sent to it") from error
        except OSError as error:
            raise self.gone(to) from error

    def wait(self, call: str, rank: int) -> Wait:
        """For a rank to go on, in some receives. call: what is waited in, in words."""
        return Wait(call, rank, self._seconds)

    def receive(self, source: int, channel: str, size: int, wait: Wait) -> bytearray:
        """The next `size` bytes. TimeoutError where they do not come in time."""
        data = bytearray(size)
        self.receive_into(source, channel, memoryview(data), wait)
        return data

    def receive_into(self, source: int, channel: str, view: memoryview, wait: Wait) -> None:
        connection = self._incoming(source, channel, wait)
        try:
            while view:
                count = wait.act(connection, partial(connection.recv_into, view))
                if not count:
                    raise self.gone(source)
                view = view[count:]
        except TimeoutError:
            raise
        except OSError as error:
            raise self.gone(source) from error

    def waiting(self, source: int, channel: str) -> bool:
        """Whether something of that rank's can be read."""
        with self._came:
            connection = self._in.get((source, channel))
        return connection is not None and bool(select.select([connection], [], [], 0)[0])

    def gone(self, rank: int) -> DreamError:
        return WorkerFailed(
            f"Rank {rank} is gone. Received: its connection to rank {self._place.rank} closed. "
            "Look at that rank's own message.",
            rank=rank,
        )

    def late(self, rank: int, what: str) -> DreamError:
        known = [f"it has not {what} within {self._seconds:g} s", *stall.give_up([rank])]
        return Desynchronized(
            f"Rank {rank} did not come. Received: {'; '.join(known)}. Make every send and receive "
            "with its counterpart; where the rank is only slow, raise "
            f"{cluster.STALL_SECONDS}."
        )

    def _outgoing(self, to: int, channel: str) -> socket.socket:
        if (to, channel) not in self._out:
            self._out[to, channel] = self._connect(to, channel)
        return self._out[to, channel]

    def _connect(self, to: int, channel: str) -> socket.socket:
        host, port, word = cluster.posted(self._place, f"links/{to}").decode().split()
        try:
            connection = socket.create_connection((host, int(port)), self._seconds)
        except OSError as error:
            raise self.gone(to) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = channel.encode()
        connection.sendall(_HELLO.pack(word.encode(), self._place.rank, len(name)) + name)
        return connection

    def _incoming(self, source: int, channel: str, wait: Wait) -> socket.socket:
        with self._came:
            while (source, channel) not in self._in:
                if not self._came.wait(wait.slice):
                    self._check_listens(source)
                    wait.look()
            return self._in[source, channel]

    def _check_listens(self, rank: int) -> None:
        """A rank that has died before it connected leaves nothing that would tell of it, but an
        address where nobody is."""
        found = cluster.found(self._place, f"links/{rank}")
        if found is None:
            return
        host, port, _ = found.decode().split()
        try:
            socket.create_connection((host, int(port)), _HELLO_SECONDS).close()
        except ConnectionRefusedError as error:
            raise self.gone(rank) from error
        except OSError:
            return  # a host that is cut off is waited for

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=[connection], daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Let in whoever knows the word."""
        connection.settimeout(_HELLO_SECONDS)
        try:
            word, rank, length = _HELLO.unpack(_exactly(connection, _HELLO.size))
            channel = _exactly(connection, length).decode()
        except (OSError, ValueError, EOFError):
            connection.close()
            return
        if not hmac.compare_digest(word, self._word):
            connection.close()
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._came:
            self._in[rank, channel] = connection
            self._came.notify_all()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


@cache
def links_of(place: Cluster) -> Links:
    """One a process."""
    return Links(place, cluster.stall_seconds())
