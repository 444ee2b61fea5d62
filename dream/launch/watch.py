"""Start a host's ranks, watch them, end them together."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from dream.cluster import _names

from .ending import Ending, first_cause
from .environment import rank_environment
from .guard import Guard
from .idle import IdleWatch
from .job import Job
from .link import Link
from .output import Output
from .place import Hosted, hosted
from .process import Process

_GRACE_SECONDS = 1.0
"""How long reports are waited for after a failure: the first cause may be heard of second."""

_TERM_SECONDS = 2.0
"""Between SIGTERM and SIGKILL. TensorFlow catches the first, so the second always comes."""

_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended on this host.

    cause: the rank to name, None where every rank ended well.
    ended: ranks of this host that had to be ended.
    lost: what ended the job that was no rank: a signal's name, a timeout, another host.
    """

    seconds: float
    cause: Ending | None = None
    ended: tuple[int, ...] = ()
    signal: signal.Signals | None = None
    lost: str = ""

    @property
    def exit_code(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        if self.cause is None:
            return 1 if self.lost else 0
        code = self.cause.code or 1
        return code if code > 0 else 128 - code


Event = int | signal.Signals | str | None
"""A rank that ended, a signal that came, or what the link to other hosts tells: "fault" or what
was lost."""


def run(job: Job, events: SimpleQueue[Event] | None = None) -> Outcome:
    """Run a job to its end. events: where signal handlers may put a signal to stop it by."""
    queue: SimpleQueue[Event] = SimpleQueue() if events is None else events
    with hosted(job) as place, _started(job, place, queue) as processes:
        link = None if place.shared is None else Link(job, place.shared, queue.put)
        try:
            outcome = _Watch(job, processes, queue, link).until_the_end()
        finally:
            if link is not None:
                link.close()
    return outcome


@contextmanager
def _started(
    job: Job, place: Hosted, queue: SimpleQueue[Event]
) -> Iterator[tuple[Process, ...]]:
    """The running ranks. However the block is left, none is left behind."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="dream-")))
        guard = Guard()
        held.callback(guard.close)
        processes: list[Process] = []
        held.callback(lambda: end_all(processes, queue))
        for cluster in place.places:
            show = job.show == "all" or (job.show == "first" and cluster.local_rank == 0)
            process = Process(
                cluster.rank,
                job.command,
                rank_environment(job, cluster),
                folder / f"rank{cluster.rank}.json",
                Output(cluster.rank, show, job.log_dir),
            )
            processes.append(process)
            guard.add(process.group)
            process.watch(queue.put)
        yield tuple(processes)


def end_all(processes: list[Process], queue: SimpleQueue[Event]) -> None:
    """SIGTERM, then SIGKILL to those that are left, and the rest of their output."""
    for process in processes:
        process.send(signal.SIGTERM)
    limit = time.monotonic() + _TERM_SECONDS
    while any(process.running for process in processes) and time.monotonic() < limit:
        _next(queue, 0.05)
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        process.output.finish(0.5)


def _next(queue: SimpleQueue[Event], timeout: float) -> Event:
    try:
        return queue.get(timeout=max(0.0, timeout))
    except Empty:
        return None


class _Watch:
    """The loop that waits for what happens next."""

    def __init__(
        self,
        job: Job,
        processes: tuple[Process, ...],
        queue: SimpleQueue[Event],
        link: Link | None,
    ) -> None:
        self._job = job
        self._processes = processes
        self._queue = queue
        self._link = link
        self._start = time.monotonic()
        self._idle: IdleWatch | None = None
        self._exit_seconds = float(job.environ.get(_names.EXIT_SECONDS) or 60)

    def until_the_end(self) -> Outcome:
        while any(process.running for process in self._processes):
            event = _next(self._queue, _TICK_SECONDS)
            if isinstance(event, signal.Signals):
                return self._outcome(signal=event)
            if event == "fault" or self._failed():
                return self._outcome(cause=self._find_cause())
            if isinstance(event, str):
                return self._outcome(lost=event)
            if self._out_of_time():
                return self._outcome(lost=f"the time limit of {self._job.timeout:g} s passed")
            if self._left_behind():
                return self._outcome(cause=first_left(self._endings()))
        if self._failed():
            return self._outcome(cause=self._find_cause())
        return self._outcome()

    def _outcome(
        self,
        cause: Ending | None = None,
        signal: signal.Signals | None = None,
        lost: str = "",
    ) -> Outcome:
        running = tuple(process.rank for process in self._processes if process.running)
        return Outcome(time.monotonic() - self._start, cause, running, signal, lost)

    def _endings(self) -> list[Ending]:
        return [ending for p in self._processes if (ending := p.ending()) is not None]

    def _failed(self) -> bool:
        return any(not p.running and e.failed for p in self._processes if (e := p.ending()))

    def _out_of_time(self) -> bool:
        limit = self._job.timeout
        return limit is not None and time.monotonic() - self._start > limit
