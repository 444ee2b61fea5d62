"""The workers that are with a server: they come, are heard of, and go."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from typing import Any, final

from dream import stall
from dream._log import logger
from dream.parameter_server.coordinator import Coordinator
from dream.parameter_server.frames import Channel, Frame, Kind

WAIT_SECONDS = 1.0
"""How often a worker that is kept waiting is told so."""


@dataclass(slots=True)
class Guest:
    """A worker as the server sees it. heard: when, by the server's clock; paused: whether it is
    kept waiting; outgoing: what parameters are copied to before they are sent;
    settings: its hyper-parameters, where it sent any."""

    rank: int
    channel: Channel
    heard: float
    outgoing: memoryview | None = None
    settings: Any = None
    registered: bool = False
    paused: bool = False
    finished: bool = False


@final
class Guests:
    """changed: the server's one lock, notified of whatever a worker may wait for; all methods but
    `heard_of` are called with it held. seen, finished: ranks that came, and that have finished.
    failure: what ends the server. clock: how long the server has been up, less the time in which
    it was itself stopped; who presides keeps it going."""

    def __init__(self, coordinator: Coordinator | None) -> None:
        self.changed = threading.Condition()
        self.seen: set[int] = set()
        self.finished: set[int] = set()
        self.failure: BaseException | None = None
        self.clock = stall.Patience(math.inf)
        self._coordinator = coordinator
        self._here: dict[int, Guest] = {}

    def __bool__(self) -> bool:
        return bool(self._here)

    def add(self, rank: int, channel: Channel) -> Guest:
        guest = Guest(rank, channel, self.clock.passed)
        before = self._here.get(rank)
        if before is not None:
            self.lose(before, "it came again")
        self._here[rank] = guest
        self.seen.add(rank)
        if self._coordinator is not None:
            self._coordinator.join(rank)
        self.changed.notify_all()
        return guest

    def heard_of(self, rank: int) -> None:
        guest = self._here.get(rank)
        if guest is not None:
            guest.heard = self.clock.passed

    def lose_the_silent(self, seconds: float) -> None:
        """Give up those that have not been heard of for so long."""
        for guest in list(self._here.values()):
            if self.clock.passed - guest.heard > seconds:
                self.lose(guest, f"it has not been heard of for {seconds:g} s")

    def lose(self, guest: Guest, why: str) -> None:
        """A worker has left, or is given up."""
        if self._here.get(guest.rank) is not guest:
            return
        del self._here[guest.rank]
        guest.channel.close()
        if self._coordinator is not None:
            self._count_out(guest, why, self._coordinator)
        self.changed.notify_all()

    def _count_out(self, guest: Guest, why: str, coordinator: Coordinator) -> None:
        if guest.finished:
            self.finished.add(guest.rank)
        again = coordinator.leave(guest.rank, lost=not guest.finished)
        if not guest.finished and self.failure is None:
            logger.warning(
                "worker of rank %d is lost: %s. Training goes on with %s; %d samples are dealt "
                "again", guest.rank, why, sorted(self._here) or "none yet", again,
            )  # fmt: skip

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.changed.notify_all()

    def check(self, guest: Guest) -> None:
        """Refuse what a worker says that was given up meanwhile."""
        if self.failure is not None or self._here.get(guest.rank) is not guest:
            raise ConnectionAbortedError("the worker was given up")

    def pause(self, guest: Guest) -> None:
        """Wait for a change, and keep the worker from thinking that nobody is there: it is told
        who is, and does not wait itself."""
        self.check(guest)
        guest.paused = True
        try:
            changed = self.changed.wait(WAIT_SECONDS)
        finally:
            guest.paused = False
        if not changed:
            awaited = [rank for rank, other in sorted(self._here.items()) if not other.paused]
            awaited = [rank for rank in awaited if rank != guest.rank]
            guest.channel.send(Frame(Kind.WAIT, text=json.dumps(awaited).encode()))
