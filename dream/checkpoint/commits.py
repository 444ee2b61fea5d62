"""Commits: checkpoints in memory that each host's launcher keeps for as long as it runs, taken more
often than those on disk, so that a job that starts again has lost little."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dream._log import logger
from dream.checkpoint.background import Work, Writing
from dream.checkpoint.checkpointer import Checkpointer, Parts
from dream.checkpoint.hosts import HostMemory, Kept, leaders, newest
from dream.checkpoint.saves import taken
from dream.checkpoint.storage.allotment import LEAST, Allotment
from dream.checkpoint.storage.folder import CheckpointFolder, arrays_of, state_of
from dream.cluster import settings
from dream.collectives import Communicator
from dream.collectives.rank_zero import at_rank_0

_SHARE = 0.01
"""Of the time, that commits may take where nobody has said how often."""
_FIRST_SHARE = 0.1
"""Of the first one's, which pays for what is made but once."""
_OVER = (
    "no more commits are kept in memory, so a job that starts again goes on from the last "
    "checkpoint on disk: %s"
)
_NO_MEMORY = "a host has no folder in memory"
_IN_PARTS = "each host would have to hold all of the model, of which it has a part"
_numbers = itertools.count()
"""By which each rank names the next commit of its process alike."""


@final
class Commits:
    """Keeps one training's checkpoints in memory. Every rank calls each method, at the same ends of
    steps.

    ahead: whether training went on from one that is newer than what is on disk.
    """

    def __init__(self, ranks: Communicator, path: Path | None, *, least: int = LEAST) -> None:
        """path: the folder on disk that they stand beside; of another than the launcher's, there
        are none. least: bytes that each rank writes, before one more of them does."""
        asked = settings.checkpoints()
        beside = path is not None and asked.folder is not None
        ours = beside and path.absolute() == asked.folder.absolute()  # type: ignore[union-attr]
        self._leaders = leaders(ranks) if ours else ()
        self.folder = (
            CheckpointFolder(asked.commits, keep=1, in_memory=True)
            if self._leaders and asked.commits is not None and asked.commits.is_dir()
            else None
        )
        several = len(self._leaders) > 1
        self._first = max(each for each in self._leaders if each <= ranks.rank) if several else 0
        self._memory = HostMemory(ranks, self.folder, self._first) if several else None
        self._untried = several
        self.ahead = False
        self._least = least
        self._ranks, self._every = ranks, asked.commit_every if self.folder else None
        self._ends, self._falls = 0, False
        self._next = 0.0
        self._begun = self._stood = 0.0
        self._last: Writing | None = None

    def step_ended(self) -> bool:
        """Count one; tell whether the ranks are to agree on a commit here. Every rank is told the
        same: what befalls one of them says nothing here."""
        self._ends += 1
        self._falls = self._every is not None and self._ends % self._every == 0
        return self._falls

    def due(self) -> bool:
        """Tell whether it is time for one, as rank 0 knows: not while the last one is written."""
        if self.folder is None or (self._last is not None and not self._last.settled):
            return False
        self._account()
        now = self._falls if self._every is not None else time.monotonic() >= self._next
        return now and self.folder is not None

    def newest(self) -> Kept | None:
        """Return the newest that the job has, on whichever host. Every rank calls it."""
        return newest(self.folder) if self._memory is None else self._memory.newest()

    def place_of(self, kept: Kept) -> Path:
        """Return where it lies on this host, brought there if need be."""
        if self._memory is not None:
            self._memory.bring(kept)
        assert self.folder is not None
        place = self.folder.newest()
        assert place is not None
        return place

    @property
    def again(self) -> bool:
        """Tell whether ranks that leave now start again at once, as rank 0 knows."""
        return self.folder is not None and (self.folder.path / settings.AGAIN).exists()

    def _account(self) -> None:
        """Look at what the last one has cost, or why it failed."""
        last, self._last = self._last, None
        if last is None:
            return
        if last.error is not None:
            self._give_up(str(last.error))
        share = _SHARE if self._next else _FIRST_SHARE
        self._next = self._begun + (self._stood + last.seconds) / share

    def take(
        self, parts: Parts, step: int, held: Checkpointer, *,
        extra: Mapping[str, Any], facts: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Copy what this rank writes of everything, and have it written meanwhile."""
        if not held.writes or not self._can():
            return  # another process does, of all
        assert self.folder is not None
        self._begun = time.monotonic()
        count = self._ranks.world_size // len(self._leaders)
        allotment = Allotment(self._ranks.rank - self._first, count, least=self._least)
        checkpoint = taken(parts, step, held, allotment, extra=extra, facts=facts)
        if self._memory is not None and allotment.owned:
            self._give_up(_IN_PARTS)
            return
        begun = self.folder.begin_alike(step, next(_numbers))
        state = state_of(checkpoint) if self._ranks.rank == 0 else {}
        if state and self._memory is not None:
            state["commit"] = secrets.token_hex(8)  # that of one step may be made twice
        work = Work(self.folder, begun, allotment, arrays_of(checkpoint), state, self._leaders)
        self._last = Writing(work, self._ranks)
        self._stood = time.monotonic() - self._begun

    def _can(self) -> bool:
        """Tell whether every host has a folder for it, as all ranks say at the first."""
        if self._untried and not all(self._ranks.all_gather_object(self.folder is not None)):
            self._give_up(_NO_MEMORY)
        self._untried = False
        return self.folder is not None

    def _give_up(self, why: str) -> None:
        if self._ranks.rank == 0:
            logger.info(_OVER, why)
        self.folder = None

    def taken(self) -> bool:
        """Wait for the last one; tell, on every rank alike, whether it is whole."""
        last = self._last
        if last is None:
            return True
        last.join()
        return not at_rank_0(self._ranks, lambda: str(last.error or ""))
