"""Who failed first, told to the others where no `dream run` listens to the ranks.

A rank whose script ends with an error of its own posts it in the job's store. One that fails
because a peer is gone looks for such a word, and says it below its own traceback. The store is rank
0's and ends with it: so rank 0 keeps a connection to each, and what it knows goes over it first.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import final

from dream import cluster
from dream._topology import Cluster
from dream.cluster import Door, knock, readable, started_by_dream
from dream.launch import child

_KIND = "last-words"
_KEY = f"{_KIND}/first"
_SECONDS = 3.0
"""How long a victim waits for the word: the first rank's excepthook may still be at it."""

_LONGEST = 2000


def listen(place: Cluster) -> None:
    """Tell of this rank's end by an error, and be told of others'. Once a job; every rank calls
    it."""
    if not place.alone and not started_by_dream():
        _listen(place)


@cache
def _listen(place: Cluster) -> None:
    shown = sys.excepthook
    words = _Keeper(place) if place.rank == 0 else _Guest(place)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        sys.stderr.flush()
        with suppress(Exception):  # a report is no reason to fail otherwise
            _at_the_end(place, words, error)

    sys.excepthook = hook


def _at_the_end(place: Cluster, words: _Keeper | _Guest, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt):
        return
    if child.looks_like_a_victim(error, str(error)):
        said = words.heard()
        if said:
            print(f"dream: {said}", file=sys.stderr, flush=True)
    else:
        words.say(_report(place.rank, error))


def _report(rank: int, error: BaseException) -> str:
    (*_, what) = traceback.format_exception_only(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"Rank {rank} failed first{where}: {what.strip()}"[:_LONGEST]


@final
class _Keeper:
    """Rank 0's side."""

    def __init__(self, place: Cluster) -> None:
        self._place = place
        self._guests: list[socket.socket] = []
        self._lock = threading.Lock()
        self._door = Door(place, _KIND, self._welcome)

    def _welcome(self, rank: int, purpose: str, connection: socket.socket) -> None:
        del rank, purpose
        with self._lock:
            self._guests.append(connection)

    def say(self, report: str) -> None:
        """Tell all, unless another was first."""
        first = cluster.found(self._place, _KEY)
        self._pass_on(first or report.encode())

    def heard(self) -> str:
        """Return what one of the others said, waited for, once all are told."""
        limit = time.monotonic() + _SECONDS
        while not (first := cluster.found(self._place, _KEY)) and time.monotonic() < limit:
            time.sleep(0.05)
        self._pass_on(first or b"")
        return (first or b"").decode(errors="replace")

    def _pass_on(self, report: bytes) -> None:
        with self._lock:
            for guest in self._guests:
                with suppress(OSError):
                    guest.settimeout(1.0)
                    guest.sendall(report)
                    guest.shutdown(socket.SHUT_WR)


@final
class _Guest:
    """Another rank's side."""

    def __init__(self, place: Cluster) -> None:
        self._place = place
        self._connection = knock(place, _KIND, 0, _KIND, cluster.startup_seconds())

    def say(self, report: str) -> None:
        """Leave the word with rank 0, unless another was first."""
        if not cluster.found(self._place, _KEY):
            cluster.leave_word(self._place, _KEY, report.encode())

    def heard(self) -> str:
        """Return what was said, waited for."""
        limit = time.monotonic() + _SECONDS
        while time.monotonic() < limit:
            if readable(self._connection, 0.1):
                return self._connection.recv(_LONGEST).decode(errors="replace")
            if first := cluster.found(self._place, _KEY):
                return first.decode(errors="replace")
        return ""
