"""Where the other ranks are: those of this host by memory that each lays open and by /proc, without
their help; the others by what they have posted in the job's store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, final

from dream import cluster
from dream._errors import DreamError
from dream._topology import Cluster
from dream.cluster import Rendezvous
from dream.stall import stacks
from dream.stall.activity import progress
from dream.stall.page import Neighbour, StatusPage
from dream.stall.status import ProcessState, RankStatus, text_of

T = TypeVar("T")
_REST_SECONDS = 30.0
"""A store that does not answer takes ten seconds to say so."""


@final
class SeenPeers:
    """The other ranks, as one of them sees them. The store is asked for a rank of another host, or
    of a container whose processes are not seen here."""

    def __init__(self, place: Cluster, page: StatusPage, held: float) -> None:
        """held: seconds after which a rank that runs, and has not looked at itself, is one that
        does not get to its interpreter."""
        self._place, self._held_seconds = place, held
        self._near: dict[int, Neighbour] = {}
        here = place.ranks_on(place.node_rank)
        self._strange = {rank for rank in here if rank != place.rank}
        self._far = {*range(place.world_size)} - self._strange - {place.rank}
        self._beats: dict[int, tuple[int, float]] = {}
        self._posted = False
        self._store_rests = 0.0
        self._said = page.address
        self._told = False

    @property
    def ranks(self) -> list[int]:
        return [rank for rank in range(self._place.world_size) if rank != self._place.rank]

    @property
    def posts(self) -> bool:
        """Whether some rank sees this one only by what it posts."""
        return bool(self._far or self._strange)

    def meet(self) -> None:
        """Tell where this rank's notice is, and find those of this host's other ranks."""
        if not self._told:
            self._told = self._put(f"stall/{self._place.rank}", self._said)
        for rank in sorted(self._strange):
            address = self._found(f"stall/{rank}")
            if address is None:
                continue
            self._strange.discard(rank)
            neighbour = Neighbour.met(address)
            if neighbour is None:
                self._far.add(rank)
            else:
                self._near[rank] = neighbour

    def post(self, status: RankStatus | None) -> None:
        """Say where this rank is to those who see it no other way; None where it moves again."""
        if status is None and not self._posted:
            return
        said = b"" if status is None else text_of(status.packed())
        self._put(f"standing/{self._place.rank}", said)
        self._posted = status is not None

    def note(self, status: RankStatus) -> None:
        """Say how often this rank has stood still, to those who do not see it."""
        if self.posts:
            self._put(f"stood/{self._place.rank}", text_of(status.packed()))

    def noted(self, rank: int) -> RankStatus:
        """Return what a rank last said of itself, moving or not."""
        if rank in self._near:
            return self.status(rank)
        said = self._found(f"stood/{rank}")
        return RankStatus.unpacked(json.loads(said)) if said else RankStatus(rank)

    def look(self) -> None:
        """See whether the ranks of this host still look at themselves."""
        for rank in self._near:
            self.status(rank)

    def status(self, rank: int) -> RankStatus:
        near = self._near.get(rank)
        return self._posting(rank) if near is None else self._reading(rank, near)

    def gone(self, rank: int) -> bool:
        """Whether the process of a rank of this host has ended; False of others."""
        near = self._near.get(rank)
        return near is not None and not near.state

    def stack(self, rank: int) -> list[str]:
        """Return what a rank of this host is in, innermost call first; empty if it tells none."""
        near = self._near.get(rank)
        said = None if near is None else near.read()
        if near is None or said is None or near.state in ("", "T", "t"):
            return []
        return stacks.ask(near.pid, int(said["signal"]), near.stacks)

    def _reading(self, rank: int, near: Neighbour) -> RankStatus:
        said, state = near.read(), near.state
        status = RankStatus(rank) if said is None else RankStatus.unpacked(said)
        if not state:
            return replace(status, state=ProcessState.GONE)
        if state in "Tt":
            return replace(status, state=ProcessState.STOPPED)
        if said is not None and self._held(rank, int(said["beat"])):
            return replace(status, state=ProcessState.HELD)
        return status

    def _held(self, rank: int, beat: int) -> bool:
        """Whether this rank's beat has stood still, and not for want of looking at it."""
        now = time.monotonic()
        before, since = self._beats.get(rank, (-1, now))
        if beat != before:
            self._beats[rank] = beat, now
            return False
        return now - since > self._held_seconds

    def _put(self, key: str, value: bytes) -> bool:
        """Whether the store has it now."""

        def put(store: Rendezvous) -> bool:
            store.put(key, value)
            return True

        return bool(self._ask(put))

    def _found(self, key: str) -> bytes | None:
        return self._ask(lambda store: store.find(key))

    def _ask(self, act: Callable[[Rendezvous], T]) -> T | None:
        """None where the store does not answer, as the one that a stopped rank serves: it is then
        left alone for a while."""
        if time.monotonic() < self._store_rests:
            return None
        try:
            return act(cluster.rendezvous(self._place))
        except TimeoutError:
            self._store_rests = time.monotonic() + _REST_SECONDS
        except (OSError, DreamError):
            pass
        return None

    def _posting(self, rank: int) -> RankStatus:
        said = self._found(f"standing/{rank}")
        found = RankStatus.unpacked(json.loads(said)) if said else None
        if found is None or found.steps < progress.steps - 1:  # from before it went on
            return RankStatus(rank, ProcessState.SILENT)
        return found
