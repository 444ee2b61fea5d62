"""A wait at a connection, told of once it has become long."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self, final

from dream import stall


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
