"""Commits: checkpoints in memory that the launcher keeps for as long as it runs, taken more often
than those on disk, so that a job that starts again has lost little."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dream._log import logger
from dream.checkpoint.background import Work, Writing
from dream.checkpoint.checkpointer import Checkpointer, Parts
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
_numbers = itertools.count()
"""By which each rank names the next commit of its process alike."""


@final
class Commits:
    """Those of one training. Every rank calls each method, at the same ends of steps.

    ahead: whether training went on from one that is newer than what is on disk.
    """

    def __init__(self, ranks: Communicator, path: Path | None, *, least: int = LEAST) -> None:
        """path: the folder on disk that they stand beside; of another than the launcher's, there
        are none. least: bytes that each rank writes, before one more of them does."""
        asked = settings.checkpoints()
        beside = path is not None and asked.folder is not None
        ours = beside and path.absolute() == asked.folder.absolute()  # type: ignore[union-attr]
        self.folder = (
            CheckpointFolder(asked.commits, keep=1, in_memory=True)
            if ours and asked.commits is not None and asked.commits.is_dir()
            else None
        )
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
            logger.info(_OVER, last.error)
            self.folder = None
        share = _SHARE if self._next else _FIRST_SHARE
        self._next = self._begun + (self._stood + last.seconds) / share

    def take(
        self, parts: Parts, step: int, held: Checkpointer, *,
        extra: Mapping[str, Any], facts: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Copy what this rank writes of everything, and have it written meanwhile."""
        assert self.folder is not None
        if not held.writes:
            return  # another process does, of all
        self._begun = time.monotonic()
        allotment = Allotment(self._ranks.rank, self._ranks.world_size, least=self._least)
        checkpoint = taken(parts, step, held, allotment, extra=extra, facts=facts)
        begun = self.folder.begin_alike(step, next(_numbers))
        state = state_of(checkpoint) if self._ranks.rank == 0 else {}
        work = Work(self.folder, begun, allotment, arrays_of(checkpoint), state)
        self._last = Writing(work, self._ranks)
        self._stood = time.monotonic() - self._begun

    def taken(self) -> bool:
        """Wait for the last one; tell, on every rank alike, whether it is whole."""
        last = self._last
        if last is None:
            return True
        last.join()
        return not at_rank_0(self._ranks, lambda: str(last.error or ""))
