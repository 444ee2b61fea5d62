"""A worker's connections to all servers, and the heartbeat that tells of it."""

from __future__ import annotations

import contextlib
import threading
from typing import final

from dream import cluster
from dream._errors import DreamError
from dream._topology import Cluster
from dream.parameter_server.door import knock
from dream.parameter_server.frames import Channel, Frame, Kind
from dream.parameter_server.hearing import Hearing
from dream.parameter_server.roles import Roles
from dream.parameter_server.words import error_of

BEAT_SECONDS = 1.0


@final
class Lines:
    """By the server's number; the first one coordinates. For one thread."""

    def __init__(self, place: Cluster, roles: Roles) -> None:
        self._place, self._roles = place, roles
        self._channels: list[Channel] = []
        self._closed = threading.Event()
        self.connect()
        threading.Thread(target=self._beat, name="dream-beat", daemon=True).start()

    @property
    def closed(self) -> bool:
        """Whether this worker has left."""
        return self._closed.is_set()

    @property
    def servers(self) -> range:
        return range(len(self._channels))

    def connect(self) -> None:
        """To all servers, anew where there were connections."""
        for channel in self._channels:
            channel.close()
        seconds = cluster.stall_seconds()
        self._channels = [knock(self._place, s, "work", seconds) for s in self._roles.serving]

    def send(self, server: int, frame: Frame, data: memoryview | None = None) -> None:
        self._channels[server].send(frame, data)

    def hear(self, server: int) -> Frame:
        """The next answer of a server, less its buffer. An error is raised as it was there."""
        with Hearing(self._roles.serving[server], self._channels[server]) as hearing:
            frame = hearing.answer()
        if frame.kind == Kind.ERROR:
            raise error_of(frame.text)
        return frame

    def call(self, frame: Frame) -> Frame:
        """The coordinator's answer."""
        self.send(0, frame)
        return self.hear(0)

    def receive_into(self, server: int, view: memoryview) -> None:
        self._channels[server].receive_into(view)

    def leave(self) -> None:
        """This worker has finished. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.send(Frame(Kind.BYE))
            channel.close()

    def _beat(self) -> None:
        """Tell the coordinator that this process is alive, from a thread of its own."""
        while not self._closed.is_set():
            with contextlib.suppress(OSError, DreamError):
                channel = knock(self._place, self._roles.coordinator, "beat", BEAT_SECONDS)
                try:
                    while not self._closed.wait(BEAT_SECONDS):
                        channel.send(Frame(Kind.BEAT))
                finally:
                    channel.close()
            self._closed.wait(BEAT_SECONDS)
