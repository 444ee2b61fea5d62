"""A worker's wait for a server's answer."""

from __future__ import annotations

import contextlib
import json
from typing import Self, final

from dream import cluster, stall
from dream.parameter_server.frames import Channel, Frame, Kind

_CALL = "an answer of the servers"


@final
class Hearing:
    """A worker's wait for an answer: for its server, or for the workers that the server waits for,
    which it names."""

    def __init__(self, server: int, channel: Channel) -> None:
        """server: its rank."""
        self._server, self._channel = server, channel
        self._awaited = [server]
        self._patience = stall.Patience(cluster.stall_seconds())
        self._told = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._told.close()

    def answer(self) -> Frame:
        """The next frame that is one. `Desynchronized` where it does not come in time."""
        self._channel.settimeout(self._patience.seconds)
        while True:
            if self._channel.comes(self._patience.slice):
                frame = self._channel.receive()
                if frame.kind != Kind.WAIT:
                    return frame
                self._awaited = json.loads(frame.text or b"[]") or [self._server]
            self._look()

    def _look(self) -> None:
        if not self._patience.passed:
            self._told.enter_context(stall.waiting(_CALL, lambda: self._awaited))
        if self._patience.over():
            where = stall.give_up(self._awaited) or ["nothing"]
            raise stall.absence(_CALL, self._awaited, where, self._patience.seconds)
