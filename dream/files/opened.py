"""Files that several ranks of a host write in the block by means that dream does not change
(`np.save`, `pickle.dump`, `json.dump`, an open file): found as they are opened, and told once.

What is in hidden folders, what is appended to and no table, or opened by others' means than `open`
in a mode with "w" or "a" is left alone: logs may be shared, and caches have locks. So are other
hosts, where one path may be two files.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, final

from dream import cluster
from dream._errors import DreamError
from dream._log import logger
from dream._topology import Cluster
from dream.files import first
from dream.files.runs import Runs
from dream.files.store import PatientStore
from dream.files.whole import resolved, stands

_MOST = 1000
"""Paths of a rank that are looked at: more are a data set that is being made, not a mistake."""
_OPENED, _LOOKED, _TOLD = b"opened", b"looked", b"told"
_SECONDS, _WAIT = 1.0, 0.005
"""For a lower rank, which is looking as well, to tell it; and between two questions."""
_FOUND = "opens/found"
"""Whether another rank than 0 has told anything; and with a rank behind it, what that one has."""
_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".txt")

_watching: Watch | None = None


def watch(place: Cluster) -> Watch:
    """Have what is opened from now on looked at, until `rest`."""
    _hook()
    _of(place).begin()
    return _of(place)


@cache
def _hook() -> None:
    """Once a process, for good: Python takes no audit hook back."""

    def opening(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and (watching := _watching) is not None:
            watching.opened(*arguments)

    sys.addaudithook(opening)


@cache
def _of(place: Cluster) -> Watch:
    return Watch(place, lambda: PatientStore(cluster.rendezvous(place)))


@final
class Watch:
    """What one rank has opened to write.

    On the job's store, under a path's word and a rank: that the rank has opened it, then what came
    of looking for others. Each says so before it looks, so one of two always sees the other.
    """

    def __init__(self, place: Cluster, store: Callable[[], PatientStore]) -> None:
        self._rank, self._make, self._process = place.rank, store, os.getpid()
        self._others = [r for r in place.ranks_on(place.node_rank) if r != place.rank]
        self._ranks, self._host = range(place.world_size), place.node_rank
        self._seen: set[str] = set()
        self._told: list[str] = []

    def begin(self) -> None:
        """Look at what is opened."""
        global _watching
        _watching = self

    def rest(self) -> None:
        """Look no longer."""
        global _watching
        _watching = None

    def opened(self, path: Any, mode: Any, flags: int) -> None:
        """Of a file that is about to be opened; nothing that happens here may keep it from it."""
        del flags
        if not isinstance(mode, str) or not isinstance(path, (str, bytes)):
            return
        name = os.fsdecode(path)
        if "w" not in mode and ("a" not in mode or not name.endswith(_TABLES)):
            return
        if name in self._seen or len(self._seen) >= _MOST or os.getpid() != self._process:
            return
        self._seen.add(name)
        with suppress(OSError, DreamError):
            place = str(resolved(name))
            if "/." not in place and not stands(name) and not Path(place).is_dir():
                self._look(place)

    def tell_of_others(self) -> None:
        """On rank 0, whose output is on the screen, tell what another rank found."""
        if self._rank == 0:
            with suppress(OSError, DreamError):
                if self._store.find(_FOUND) is None:
                    return
                found = (self._store.find(f"{_FOUND}.{rank}") for rank in self._ranks[1:])
                for text in (text for texts in found if texts for text in json.loads(texts)):
                    if text not in self._told:
                        self._told.append(text)
                        logger.warning("%s", text)

    @cached_property
    def _store(self) -> PatientStore:
        return self._make()

    def _look(self, path: str) -> None:
        word = f"{self._host}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}"
        self._store.put(f"opens/{word}.{self._rank}", _OPENED)
        found = {rank: self._store.find(f"opens/{word}.{rank}") for rank in self._others}
        ranks = sorted(rank for rank, said in found.items() if said is not None)
        if _TOLD in found.values() or (ranks and self._is_told(word, ranks[0])):
            return
        self._store.put(f"opens/{word}.{self._rank}", _TOLD if ranks else _LOOKED)
        if ranks:
            self._tell(path, sorted([*ranks, self._rank]))

    def _is_told(self, word: str, lowest: int) -> bool:
        """Whether the lowest rank that has opened it tells: it may have looked too early."""
        limit = time.monotonic() + _SECONDS
        while lowest < self._rank and time.monotonic() < limit:
            said = self._store.find(f"opens/{word}.{lowest}")
            if said != _OPENED:
                return said == _TOLD
            time.sleep(_WAIT)
        return False

    def _tell(self, path: str, ranks: list[int]) -> None:
        text = (
            f"ranks {', '.join(map(str, ranks))} write one file, and what the last of them writes "
            f"is what stays (what is appended is there once for each): {path}. Write it on one "
            "rank (`if strategy.topology.rank == 0:`), or under a name for each"
        )
        self._told.append(text)
        logger.warning("%s", text)
        if self._rank:
            self._store.put(f"{_FOUND}.{self._rank}", json.dumps(self._told).encode())
            self._store.put(_FOUND, b"")


@final
class BlockFiles:
    """A rank's side, in a job of several."""

    def __init__(self, place: Cluster) -> None:
        self._place = place
        self._watch: Watch | None = None
        self._runs: Runs | None = None

    def begin(self) -> None:
        """Watch files that other ranks of this host could write too, and silence the runs that
        trackers begin on every rank: rank 0's is the job's."""
        if self._place.local_world_size > 1:
            self._watch = watch(self._place)
        if self._place.rank:
            self._runs = Runs()
            self._runs.begin()

    def tell(self, error: BaseException | None) -> None:
        """The block ends, by an error or without."""
        if error is not None:
            first.explain(error, self._place)
        if self._watch is not None:
            self._watch.tell_of_others()

    def rest(self) -> None:
        if self._runs is not None:
            self._runs.end()
        if self._watch is not None:
            self._watch.rest()
        self._runs = self._watch = None
