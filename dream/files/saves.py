"""Which rank writes a file that several ranks save, and when the others may read it.

A path that rank 0 saves is rank 0's: what other ranks save there is left out, their calls counted.
Another path is written by the rank that saves it. Nobody meets anybody for it, since a script may
save on some ranks only. So a rank may begin to write before rank 0 comes to the same call. Then
both write, each beside the place, and rank 0's file is the one that stays: rank 0 says on the
job's store that the path is its own, and looks whether another rank is about to put a file there;
another rank says that it is about to, and looks whether the path is rank 0's. Whatever the order,
one of the two sees the other; this holds between hosts that share the folder too.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TypeVar, final

from dream import cluster
from dream._errors import WorkerFailed
from dream._log import logger
from dream._topology import Cluster
from dream.files.store import PatientStore
from dream.files.whole import resolved, whole

T = TypeVar("T")
Named = str | os.PathLike[str]

_LOOK = 0.25
"""Seconds in which rank 0 is looked for before a rank writes a path that may be rank 0's: ranks
that save the same come together, and one copy is less than one a rank."""
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.1


class SavedPaths(ABC):
    """A rank's account of the paths it saves."""

    @abstractmethod
    def save(self, path: Named, fill: Callable[[Path], T], *, follow: bool = False) -> T | None:
        """Have `fill` write the file, whole or not at all, where it is this rank's to write; None
        where it is not. follow: rank 0 alone can write it."""

    @abstractmethod
    def takes(self, path: Named, seconds: float) -> bool:
        """Whether a folder or file that is written bit by bit is this rank's. seconds: in which
        rank 0 is looked for."""

    @abstractmethod
    def before_reading(self, path: Named) -> None:
        """Return once rank 0 has put in place as many versions of a file as this rank has called
        for. WorkerFailed where it does not, or is gone."""


def here() -> SavedPaths:
    """This process's account, the same for all its blocks."""
    return _of(cluster.detect())


@cache
def _of(place: Cluster) -> SavedPaths:
    if place.alone:
        return Alone()
    store = PatientStore(cluster.rendezvous(place), cluster.stall_seconds())
    if place.rank == 0:
        return First(place.world_size, store, cluster.stall_seconds())
    return Other(place.rank, store, cluster.stall_seconds())


@final
class Alone(SavedPaths):
    """A process on its own: every file is its."""

    def save(self, path: Named, fill: Callable[[Path], T], *, follow: bool = False) -> T | None:
        with whole(path) as part:
            return fill(part)

    def takes(self, path: Named, seconds: float) -> bool:
        return True

    def before_reading(self, path: Named) -> None:
        """Its files are there once it has saved them."""


@final
class First(SavedPaths):
    """Rank 0. limit: seconds that it waits for a rank that is about to rename a file."""

    def __init__(self, world_size: int, store: PatientStore, limit: float) -> None:
        self._world_size, self._store, self._limit = world_size, store, limit
        self._lock = Lock()
        self._begun: Counter[str] = Counter()
        self._over: Counter[str] = Counter()
        self._sole: set[str] = set()

    def save(self, path: Named, fill: Callable[[Path], T], *, follow: bool = False) -> T | None:
        """A save that fails is over too: rank 0 itself goes on with what was there."""
        word = _word(path)
        self._count(word, self._begun)
        try:
            with whole(path, lambda: self._turn(word, path)) as part:
                return fill(part)
        finally:
            self._count(word, self._over)

    def takes(self, path: Named, seconds: float) -> bool:
        word = _word(path)
        if word not in self._begun:
            self._count(word, self._begun)
            self._count(word, self._over)
        return True

    def before_reading(self, path: Named) -> None:
        """Rank 0 reads what is there, as it would by itself."""

    def _count(self, word: str, counted: Counter[str]) -> None:
        """One more, told to the others."""
        with self._lock:
            if word not in self._begun:  # a rank that was started again goes on from what was told
                self._begun[word] = self._over[word] = _begun_and_over(self._store, word)[0]
            counted[word] += 1
            told = f"{self._begun[word]} {self._over[word]}"
            self._store.put(_key(word), told.encode())

    @contextmanager
    def _turn(self, word: str, path: Named) -> Iterator[bool]:
        """Once no other rank is about to put a file in the same place. A moment, and for the first
        file only: later ranks see whose the path is."""
        if word not in self._sole and self._store.find(_key(word, "others")) is not None:
            limit = time.monotonic() + self._limit
            for rank in range(1, self._world_size):
                while self._store.find(_key(word, rank)) is not None:
                    if time.monotonic() > limit:
                        raise _stuck(path, rank, self._limit)
                    time.sleep(_FIRST_WAIT)
        self._sole.add(word)
        yield True


@final
class Other(SavedPaths):
    """A rank other than 0. limit: seconds that it waits for rank 0's file."""

    def __init__(self, rank: int, store: PatientStore, limit: float) -> None:
        self._rank, self._store, self._limit = rank, store, limit
        self._lock = Lock()
        self._called: Counter[str] = Counter()
        self._rank_0s: set[str] = set()
        self._own: set[str] = set()
        self._alike: dict[str, bool] = {}

    def save(self, path: Named, fill: Callable[[Path], T], *, follow: bool = False) -> T | None:
        word = _word(path)
        with self._lock:
            self._called[word] += 1
        if follow or not self._may_be_own(word, path):
            return None
        with whole(path, lambda: self._turn(word)) as part:
            return fill(part)

    def takes(self, path: Named, seconds: float) -> bool:
        word = _word(path)
        if word not in self._own and self._may_be_own(word, path, seconds):
            self._own.add(word)
        return word in self._own

    def before_reading(self, path: Named) -> None:
        """Nobody is asked about files that this rank has not saved: data sets are read so too."""
        if not self._called:
            return
        word = _word(path)
        if word in self._own and self._may_be_own(word, path):
            return
        limit, wait = time.monotonic() + self._limit, _FIRST_WAIT
        while (over := self._over(word)) < self._called[word]:
            if time.monotonic() > limit:
                raise _late(path, self._called[word], over, self._limit)
            time.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_WAIT)

    def _over(self, word: str) -> int:
        return _begun_and_over(self._store, word)[1] if self._called[word] else 0

    def _may_be_own(self, word: str, path: Named, seconds: float = _LOOK) -> bool:
        """Whether this rank is to write, as far as can be seen now."""
        try:
            return not self._sees_rank_0(word, path, seconds)
        except WorkerFailed:  # rank 0 served the store, and has left before this rank
            if word in self._own or not resolved(path).exists():
                return True
            logger.warning(
                "rank %d: rank 0 has exited, so it is unknown which rank wrote %s: the file is "
                "left as it is",
                self._rank,
                path,
            )
            return False

    @contextmanager
    def _turn(self, word: str) -> Iterator[bool]:
        """Whether the file is this rank's to put, said before it is looked at."""
        try:
            self._store.put(_key(word, "others"), b"1")
            self._store.put(_key(word, self._rank), b"1")
            mine = not self._is_rank_0s(word)
        except WorkerFailed:  # rank 0 has left since, and puts nothing anywhere
            mine = True
        try:
            if mine:
                self._own.add(word)
            yield mine
        finally:
            with suppress(WorkerFailed):
                self._store.delete(_key(word, self._rank))

    def _sees_rank_0(self, word: str, path: Named, seconds: float) -> bool:
        """Whether the path is rank 0's, with a moment for rank 0 to come; with none where it did
        not come to a path that differs from this one in numbers alone."""
        like = re.sub(r"\d+", "#", os.fsdecode(path))
        limit = time.monotonic() + (seconds if self._alike.get(like, True) else 0.0)
        wait = _FIRST_WAIT
        while not (found := self._is_rank_0s(word)) and time.monotonic() < limit:
            time.sleep(wait)
            wait = min(wait * 2.0, _LONGEST_WAIT)
        self._alike[like] = found
        return found

    def _is_rank_0s(self, word: str) -> bool:
        if word not in self._rank_0s and self._store.find(_key(word)) is not None:
            self._rank_0s.add(word)
        return word in self._rank_0s


def _word(path: Named) -> str:
    """The same on every rank for the same file; short, whatever the path."""
    return hashlib.sha256(os.fsencode(resolved(path))).hexdigest()[:32]


def _key(word: str, of: str | int = 0) -> str:
    return f"saves/{word}.{of}"


def _begun_and_over(store: PatientStore, word: str) -> tuple[int, int]:
    """How many saves of a path rank 0 has begun, and how many of them are over."""
    begun, over = (store.find(_key(word)) or b"0 0").split()
    return int(begun), int(over)


def _late(path: Named, wanted: int, over: int, seconds: float) -> WorkerFailed:
    return WorkerFailed(
        f"Rank 0 has not saved the file that this rank wants to read. Received: {path}, saved "
        f"{wanted} times by this rank's script and {over} times by rank 0's within {seconds:g} s. "
        "Save it on rank 0 as often as on the other ranks, or only on rank 0 (`if rank == 0:`), or "
        f"raise {cluster.STALL_SECONDS}.",
        rank=0,
    )


def _stuck(path: Named, rank: int, seconds: float) -> WorkerFailed:
    return WorkerFailed(
        f"Rank {rank} was about to replace rank 0's file with its own, and has not finished for "
        f"{seconds:g} s. Received: {path}. Find out what is blocking that rank.",
        rank=rank,
    )
