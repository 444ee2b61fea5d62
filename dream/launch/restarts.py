"""Whether a job is started again once a rank has failed, and when."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import final

from dream.launch.ending import Ending, Outcome
from dream.launch.job import Job
from dream.launch.output import SCREEN

_QUICK = 60.0
"""Seconds: what fails sooner may fail of something that takes its time to pass."""

_LONGEST_WAIT = 60.0


def goes_on_from(job: Job) -> str:
    """Say where the next start begins, for the end of a sentence."""
    if job.checkpoint is None:
        return ""
    try:
        newest = (job.checkpoint / "latest").read_text(encoding="utf-8").strip()
    except OSError:
        return (
            f", from the beginning: nothing is saved in {job.checkpoint} yet (what keeps a script "
            "from being saved by itself is said as its training begins)"
        )
    return f", from {job.checkpoint / newest}"


@final
class Restarts:
    """Those of one job. What comes back at the same step is the script's, and ends it."""

    def __init__(self) -> None:
        self._before: Ending | None = None
        self._quick = 0
        self._spent = 0

    def next(self, job: Job, outcome: Outcome) -> Job | None:
        """Return what is to be started now, when it is time; None where nothing is.

        The hosts that are left go on without spending a restart, and so do they with one that has
        come. Where the restarts are spent, a rank is lost for good: the job goes on with one fewer,
        and may start again as often.
        """
        again = replace(job, attempt=job.attempt + 1)
        if job.hosts_change and (outcome.changes or (outcome.lost and not outcome.grace)):
            SCREEN.say(f"Starting again, with the hosts that are there{goes_on_from(job)}.")
            return again
        shrinks = self._spent == job.max_restarts
        if (shrinks and job.n == (job.min_n or job.n)) or not self.may_follow(outcome):
            return None
        if not shrinks:
            self._spent += 1
            self.wait(outcome)
            SCREEN.say(f"Starting again, {self._spent} of {job.max_restarts}{goes_on_from(job)}.")
            return again
        self._spent = 0
        SCREEN.say(
            f"A rank is lost for good (--max-restarts {job.max_restarts}). Starting again with "
            f"{job.n - 1}, of {job.min_n} at least{goes_on_from(job)}."
        )
        return replace(again, n=job.n - 1)

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
