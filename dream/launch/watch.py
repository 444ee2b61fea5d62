"""Wait for what happens to a host's ranks, and find out why the job ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import final

from dream.launch.ending import Blame, Ending, Outcome, find_cause, first_left
from dream.launch.hosts.judge import JobVerdict
from dream.launch.hosts.link import DONE, FAULT, HostLink
from dream.launch.process import Process
from dream.launch.survivors import Expendable, IdleWatch

Event = int | signal.Signals | str | None
"""A rank that ended or told that it does, a signal that came, what another host tells, or nothing
for a while."""

Events = SimpleQueue[Event]
_GRACE_SECONDS = 1.0
"""How long reports are waited for when only victims are known: the first cause may be heard of
second, since an interpreter takes its time to end."""

_SHORT_GRACE_SECONDS = 0.2
_TICK_SECONDS = 1.0
_LEAVING_SECONDS = 2.0
"""How long a rank may still run once an error has ended its script: a thread that is no daemon, or
a function for the exit, would keep it, and all the others with it, for as long as it likes."""

_LEAVING_TICK_SECONDS = 0.1
_LAST_SECONDS = 0.1
"""How long it may take from a rank's end to the event that tells of it."""


def next_event(events: Events, timeout: float) -> Event:
    try:
        return events.get(timeout=timeout)
    except Empty:
        return None


@final
class JobWatch:
    """The loop over events. start: when the ranks were started, by the monotonic clock. grows:
    whether it is time to try again the ranks that were lost, so many seconds after the start."""

    def __init__(
        self,
        processes: Sequence[Process],
        events: Events,
        *,
        link: HostLink | None,
        expendable: Expendable,
        start_again: Callable[[int], None],
        timeout: float | None,
        stall_seconds: float,
        start: float,
        grows: Callable[[float], bool] = lambda _: False,
    ) -> None:
        self._processes = processes
        self._events = events
        self._link = link
        self._expendable = expendable
        self._start_again = start_again
        self._start, self._grows = start, grows
        self._timeout = timeout
        self._idle = IdleWatch(stall_seconds)
        self._all_done = link is None

    def until_the_end(self) -> Outcome:
        """Return how the job ended. Ranks that have to be ended still run."""
        while True:
            # Before the event: a rank may end, and fail, while the last one is looked at.
            over = self._all_done and not self._awaited()
            event = next_event(self._events, self._last_words() if over else self._see_out())
            outcome = self._outcome_of(event)
            if outcome is not None:
                return outcome
            if over and event is None:
                return self._outcome()

    def _last_words(self) -> float:
        """Return how long the events of ranks that have all ended may be waited for."""
        return _LAST_SECONDS if self._failed() else 0.0

    def _see_out(self) -> float:
        """End the ranks that failed and do not leave; how long the next event may be waited for."""
        self._expendable.tell_of_stopped(
            [p.rank for p in self._processes if p.running and p.stopped]
        )
        stays = [(process, process.stays) for process in self._processes]
        for process, seconds in stays:
            if seconds > _LEAVING_SECONDS:
                process.kill()
        return _LEAVING_TICK_SECONDS if any(stay for _, stay in stays) else _TICK_SECONDS

    def _outcome_of(self, event: Event) -> Outcome | None:
        """Return the end that an event brings, if it does."""
        if isinstance(event, signal.Signals):
            return self._stopped(event)
        if isinstance(event, int):
            self._look_after(event)
        if event == FAULT or self._failed():
            return self._failure()
        if event == DONE:
            self._all_done = True
        elif isinstance(event, int) and not self._running() and self._link is not None:
            self._link.finished(self._endings())
        return self._overdue()

    def _look_after(self, rank: int) -> None:
        """See whether the rank has ended: it may be one that the job can do without."""
        for process in self._processes:
            ended = process.rank == rank and not process.running
            ending = process.ending() if ended else None
            if ending is not None and self._expendable.starts_again(ending):
                self._start_again(rank)
                return

    def _awaited(self) -> list[Process]:
        """Return the running ranks, less those that the others have finished without."""
        running = self._running()
        if running and len(running) < len(self._processes):
            given_up = self._expendable.given_up()
            if all(process.rank in given_up for process in running):
                return []
        return running

    def _overdue(self) -> Outcome | None:
        if self._timeout is not None and time.monotonic() - self._start > self._timeout:
            lost = f"the time limit of {self._timeout:g} s passed"
            self._tell(lost)
            return self._outcome(lost=lost)
        if self._grows(time.monotonic() - self._start) and not self._endings():
            outcome = self._outcome(lost="ranks that were lost are tried again")
            return replace(outcome, grace=True, changes=True)
        left = first_left([*self._endings(), *(self._link.left() if self._link else ())])
        training = [process for process in self._running() if process.ending() is None]
        if left is None or not training or not self._idle.too_long(left, training):
            return None
        self._tell(f"rank {left.rank} left with exit code 0 while others still trained")
        return self._outcome(cause=Blame(left))

    def _failure(self) -> Outcome:
        """Wait a little for reports, here and from other hosts, then name the first cause."""
        running = tuple(process.rank for process in self._running())
        stopped = self._wait_for_reports()
        if stopped is not None:
            return self._stopped(stopped)
        endings = self._endings()
        stands = [process.rank for process in self._running() if process.stopped]
        verdict = JobVerdict(find_cause(endings, stands))
        if self._link is not None:
            verdict = self._link.verdict(endings)
        cause = verdict.cause
        named = {cause.first.rank} if cause else set()
        ended = [rank for rank in running if rank not in named]
        outcome = self._outcome(cause, lost=verdict.lost, ended=ended)
        return replace(outcome, grace=verdict.stopped, changes=verdict.changes)

    def _stopped(self, number: signal.Signals) -> Outcome:
        if self._link is not None:
            lost = f"{self._link.host} was stopped by {number.name}"
            self._link.tell(lost, self._endings(), stopped=True)
        return self._outcome(stopped=number)

    def _wait_for_reports(self) -> signal.Signals | None:
        """Or until a signal comes: who stops a whole job may have reached a rank before us."""
        start = time.monotonic()
        while self._running():
            cause = find_cause(self._endings())
            clear = cause is not None and not cause.first.victim
            grace = _SHORT_GRACE_SECONDS if clear else _GRACE_SECONDS
            if time.monotonic() - start > grace:
                break
            event = next_event(self._events, 0.05)
            if isinstance(event, signal.Signals):
                return event
        return None

    def _outcome(
        self,
        cause: Blame | None = None,
        *,
        stopped: signal.Signals | None = None,
        lost: str = "",
        ended: Sequence[int] | None = None,
    ) -> Outcome:
        if ended is None:
            ended = [process.rank for process in self._running()]
        return Outcome(time.monotonic() - self._start, cause, tuple(ended), stopped, lost)

    def _tell(self, lost: str) -> None:
        if self._link is not None:
            self._link.tell(lost, self._endings())

    def _running(self) -> list[Process]:
        return [process for process in self._processes if process.running]

    def _endings(self) -> list[Ending]:
        endings = [ending for p in self._processes if (ending := p.ending()) is not None]
        return [ending for ending in endings if ending.rank not in self._expendable.forgiven]

    def _failed(self) -> bool:
        return any(ending.failed and ending.code is not None for ending in self._endings())
