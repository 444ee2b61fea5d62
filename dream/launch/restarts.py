"""Whether a job is started again once a rank has failed, when, and from what."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import final

from dream._errors import DreamError
from dream.checkpoint.storage.folder import CheckpointFolder, order
from dream.cluster import settings
from dream.files.room import folder_in_memory
from dream.launch.ending import Ending, Outcome
from dream.launch.guard import folder_held
from dream.launch.job import Job
from dream.launch.output import SCREEN

_QUICK = 60.0
"""Seconds: what fails sooner may fail of something that takes its time to pass."""

_LONGEST_WAIT = 60.0


@contextmanager
def kept_in_memory(job: Job) -> Iterator[Job]:
    """Give a job that may start again a folder in memory for the block's length, where its ranks
    keep what they have come to."""
    if job.checkpoint is None or job.commit_every == 0 or not job.may_start_again:
        yield job
        return
    within = folder_in_memory()
    if within is None:
        SCREEN.say("This host has no in-memory folder, so a restarted job resumes from disk.")
        yield job
        return
    with folder_held("dream-commits-", within) as folder:
        yield replace(job, commits=folder)


def goes_on_from(job: Job) -> str:
    """Say where the next start begins, for the end of a sentence."""
    if job.checkpoint is None:
        return ""
    kept = _newest_kept(job)
    try:
        newest = (job.checkpoint / "latest").read_text(encoding="utf-8").strip()
    except OSError:
        newest = ""
    if kept is not None and order(kept) >= order(Path(newest)):
        return f", from step {order(kept)[0]}, kept in memory"
    if job.nnodes > 1 and job.commits is not None:
        return ", from what is newest in memory on any host, or on disk"
    if newest:
        return f", from {job.checkpoint / newest}"
    return (
        f", from the beginning: nothing is saved in {job.checkpoint} yet (a script calls "
        "strategy.load, which has it saved)"
    )


def keep_on_disk(job: Job) -> None:
    """Write what is newest in memory to the disk, once the job has ended without leave."""
    kept = _newest_kept(job)
    if kept is None:
        return
    assert job.checkpoint is not None
    try:
        with _one_host_at_a_time(job):
            there = CheckpointFolder(job.checkpoint)
            newest = there.newest()
            if newest is None or order(kept)[0] > order(newest)[0]:
                place = there.save(CheckpointFolder(kept.parent, in_memory=True).load(kept))
                SCREEN.say(f"The in-memory snapshot is saved as {place}.")
    except DreamError as error:
        SCREEN.say(str(error))


@contextmanager
def _one_host_at_a_time(job: Job) -> Iterator[None]:
    """Others then see what the first has saved, which is as new as theirs."""
    if job.nnodes == 1:
        yield
        return
    assert job.checkpoint is not None
    job.checkpoint.mkdir(parents=True, exist_ok=True)
    with (job.checkpoint / ".lock").open("wb") as lock:
        with suppress(OSError):  # a file system that has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def grows(job: Job, seconds: float) -> bool:
    """Tell whether it is time to try again the ranks that were lost: once this start, so many
    seconds ago, has saved something to go on from."""
    if job.full_n is None or job.n == job.full_n or seconds < job.grow_after:
        return False
    newest = _newest_kept(job) or (job.checkpoint and CheckpointFolder(job.checkpoint).newest())
    return newest is not None and time.time() - newest.stat().st_mtime < seconds


def _newest_kept(job: Job) -> Path | None:
    return None if job.commits is None else CheckpointFolder(job.commits, in_memory=True).newest()


@final
class Restarts:
    """Says whether a job is started again. What comes back at the same step is the script's, and
    ends it."""

    def __init__(self) -> None:
        self._before: Ending | None = None
        self._quick = 0
        self._spent = 0
        self._grown = False

    def next(self, job: Job, outcome: Outcome) -> Job | None:
        """Return what is to be started now, when it is time; None where nothing is.

        The hosts that are left go on without spending a restart, and so do they with one that has
        come. Where the restarts are spent, a rank is lost for good: the job goes on with one fewer,
        and may start again as often; after a while it is tried again with all of them.
        """
        if job.commits is not None:
            CheckpointFolder(job.commits, in_memory=True).clear_parts()
            (job.commits / settings.AGAIN).unlink(missing_ok=True)
        again = replace(job, attempt=job.attempt + 1)
        if job.hosts_change and (outcome.changes or (outcome.lost and not outcome.grace)):
            SCREEN.say(f"Starting again, with the hosts that are there{goes_on_from(job)}.")
            return again
        if outcome.changes and job.full_n is not None:
            self._spent, self._grown = job.max_restarts, True
            SCREEN.say(f"Starting again, with all {job.full_n} ranks{goes_on_from(job)}.")
            return replace(again, n=job.full_n)
        if self._grown and outcome.seconds > job.grow_after:
            self._spent, self._grown = 0, False  # they have stayed
        shrinks = self._spent == job.max_restarts
        if (shrinks and job.n == (job.min_n or job.n)) or not self.may_follow(outcome):
            return None
        if not shrinks:
            self._spent += 1
            self.wait(outcome)
            SCREEN.say(f"Starting again, {self._spent} of {job.max_restarts}{goes_on_from(job)}.")
            return again
        self._spent = 0
        if self._grown:
            again = replace(again, grow_after=2 * job.grow_after)
        self._grown = False
        SCREEN.say(
            f"A rank is permanently lost (--max-restarts {job.max_restarts}). Starting again with "
            f"{job.n - 1}, of {job.min_n} at least{goes_on_from(job)}."
        )
        return replace(again, n=job.n - 1, full_n=job.full_n or job.n)

    def may_follow(self, outcome: Outcome) -> bool:
        """Whether an end is one to start again after. Says where it would be in vain."""
        if outcome.cause is None:
            return bool(outcome.lost) and not outcome.grace
        first, before = outcome.cause.first, self._before
        self._before = first
        if before is None or not first.repeats(before):
            return True
        SCREEN.say(
            f"Not started again: rank {before.rank} raised the same error at the same step before "
            f"(step {first.step})."
        )
        return False

    def wait(self, outcome: Outcome) -> None:
        """Wait before the next start: not at first, then twice as long each time that the job
        fails soon."""
        self._quick = self._quick + 1 if outcome.seconds < _QUICK else 0
        if self._quick > 1:
            time.sleep(min(2.0 ** (self._quick - 2), _LONGEST_WAIT))
