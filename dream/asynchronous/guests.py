"""The workers that are with a server: they come, are heard of, and go."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, final

from dream._log import logger
from dream.asynchronous.coordinator import Coordinator
from dream.asynchronous.frames import Channel, Frame, Kind

WAIT_SECONDS = 1.0
"""How often a worker that is kept waiting is told so."""


@dataclass(slots=True)
class Guest:
    """A worker as the server sees it. outgoing: what parameters are copied to before they are sent;
    settings: its hyper-parameters, where it sent any."""

    rank: int
    channel: Channel
    heard: float
    outgoing: memoryview | None = None
    settings: Any = None
    registered: bool = False
    finished: bool = False


@final
class Guests:
    """changed: the server's one lock, notified of whatever a worker may wait for; all methods but
    `heard_of` are called with it held. seen, finished: ranks that came, and that have finished.
    failure: what ends the server."""

    def __init__(self, coordinator: Coordinator | None) -> None:
        self.changed = threading.Condition()
        self.seen: set[int] = set()
        self.finished: set[int] = set()
        self.failure: BaseException | None = None
        self._coordinator = coordinator
        self._here: dict[int, Guest] = {}

    def __bool__(self) -> bool:
        return bool(self._here)

    def add(self, rank: int, channel: Channel) -> Guest:
        guest = Guest(rank, channel, time.monotonic())
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
            guest.heard = time.monotonic()

    def lose_the_silent(self, seconds: float) -> None:
        """Give up those that have not been heard of for so long."""
        now = time.monotonic()
        for guest in list(self._here.values()):
            if now - guest.heard > seconds:
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
        """Wait for a change, and keep the worker from thinking that nobody is there."""
        self.check(guest)
        if not self.changed.wait(WAIT_SECONDS):
            guest.channel.send(Frame(Kind.WAIT))
