"""Connect ranks, once for each direction and purpose, when first used; and wait with patience.

A rank has a door; who wants to send comes to it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from typing import Self, final

from dream import cluster, stall
from dream._errors import Desynchronized, DreamError, WorkerFailed
from dream._topology import Cluster


@final
class Wait:
    """For one rank to go on. Time counts while nothing comes."""

    def __init__(self, call: str, rank: int, seconds: float) -> None:
        """call: what is waited in, in words. rank: of the job. seconds: how long, at most."""
        self._call, self._rank = call, rank
        self._patience = stall.Patience(seconds)
        self._told: ExitStack | None = None

    @property
    def slice(self) -> float:
        """Seconds until the next look."""
        return self._patience.slice

    def look(self) -> None:
        """Nothing has come in a while. TimeoutError where that has gone on for too long."""
        if self._told is None:
            self._told = ExitStack()
            self._told.enter_context(stall.waiting(self._call, lambda: [self._rank]))
        if self._patience.over():
            raise TimeoutError

    def act(self, connection: socket.socket, act: Callable[[], int]) -> int:
        """What a call on a connection gives, which moves some bytes. TimeoutError where none do."""
        self._patience.restart()
        while True:
            connection.settimeout(self.slice)
            try:
                return act()
            except TimeoutError:
                self.look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._told is not None:
            self._told.close()


_KIND = "links"


@final
class Links:
    """This rank's connections to the others.

    Ranks are the job's. A channel is a name that keeps apart what is sent for different ends;
    what is sent on one arrives in order.
    """

    def __init__(self, place: Cluster, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        self._out: dict[tuple[int, str], socket.socket] = {}
        self._in: dict[tuple[int, str], socket.socket] = {}
        self._came = threading.Condition()
        self._door = cluster.Door(place, _KIND, self._welcome)

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

    def gone(self, rank: int) -> DreamError:
        return WorkerFailed(
            f"Rank {rank} is gone. Received: its connection to rank {self._place.rank} closed. See "
            "that rank's own error message.",
            rank=rank,
        )

    def late(self, rank: int, what: str) -> DreamError:
        known = [f"it has not {what} within {self._seconds:g} s", *stall.give_up([rank])]
        return Desynchronized(
            f"Rank {rank} did not come. Received: {'; '.join(known)}. Match every send with a "
            f"receive; if the rank is only slow, raise {cluster.STALL_SECONDS}."
        )

    def _outgoing(self, to: int, channel: str) -> socket.socket:
        if (to, channel) not in self._out:
            self._out[to, channel] = self._connect(to, channel)
        return self._out[to, channel]

    def _connect(self, to: int, channel: str) -> socket.socket:
        try:
            return cluster.knock(self._place, _KIND, to, channel, self._seconds)
        except OSError as error:
            raise self.gone(to) from error

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
        if not cluster.listens(self._place, _KIND, rank):
            raise self.gone(rank)

    def _welcome(self, rank: int, channel: str, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._came:
            self._in[rank, channel] = connection
            self._came.notify_all()


@cache
def links_of(place: Cluster) -> Links:
    """One a process."""
    return Links(place, cluster.stall_seconds())
