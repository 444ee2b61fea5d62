"""Start a host's ranks, and end them together, each with everything it started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import final

from dream._errors import ConfigurationError, listed
from dream._topology import Cluster
from dream.cluster import settings, stall_seconds
from dream.launch.ending import Outcome
from dream.launch.environment import rank_environment
from dream.launch.guard import Guard
from dream.launch.job import Job
from dream.launch.output import SCREEN, Output, finish
from dream.launch.place import Hosted, hosted
from dream.launch.process import Process
from dream.launch.restarts import grows
from dream.launch.survivors import Expendable
from dream.launch.watch import Events, JobWatch, next_event
from dream.stall.notice import JOB, ProcessNotice

_DESCRIPTORS_EACH = 7
"""Descriptors that a rank costs: its two streams, both ends of the pipe it reports over, the port
held for it, a log, the connection to who forked it."""

_DESCRIPTORS_COMMON = 32
"""Guard, store and its callers, what Python opens for a moment."""
_TERM_SECONDS = 2.0
"""After a failure, between SIGTERM and SIGKILL. Frameworks catch the first, so the second always
comes; also, how long the system may take for the second."""

_STREAM_SECONDS = 0.5
Listen = Callable[[Events], AbstractContextManager[object]]


def check_descriptors(n: int) -> None:
    """Raise ConfigurationError where there are too few for n ranks."""
    try:
        import resource

        opened = len(os.listdir("/dev/fd"))  # noqa: PTH208 - names are enough
    except (ImportError, OSError):
        return  # a system that tells neither
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = opened + _DESCRIPTORS_EACH * n + _DESCRIPTORS_COMMON
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise ConfigurationError(
            f"The limit on open files is too low for this many ranks. Received: {n} ranks, which "
            f"need {needed}, and a limit of {limit}. Run `ulimit -n {max(4096, needed)}` first, or "
            "start fewer ranks."
        )


@dataclass(frozen=True, slots=True)
class Manner:
    """How ranks are ended: by a signal, and by SIGKILL those that are left `grace` seconds later.

    grace: given by who stopped the job from outside, for ranks that save what they have.
    """

    number: signal.Signals = signal.SIGTERM
    seconds: float = _TERM_SECONDS
    grace: float = _TERM_SECONDS


def end(processes: Sequence[Process], events: Events, manner: Manner) -> signal.Signals | None:
    """Return once they are gone, and their output has been read; the signal that came meanwhile.

    A rank gets the signal itself, its children go when it is gone. Ctrl-C meanwhile ends the wait
    at once; another signal means that the job is stopped from outside, and gives ranks the grace.
    """
    for process in processes:
        process.ask(manner.number)
    heard = _wait(processes, events, manner)
    for process in processes:
        process.kill()
    limit = time.monotonic() + _TERM_SECONDS
    while any(process.running for process in processes) and time.monotonic() < limit:
        next_event(events, 0.05)
    finish([process.output for process in processes], _STREAM_SECONDS)
    return heard


def _wait(processes: Sequence[Process], events: Events, manner: Manner) -> signal.Signals | None:
    start = time.monotonic()
    seconds, said = manner.seconds, False
    heard: signal.Signals | None = None
    while left := [process.rank for process in processes if process.running]:
        passed = time.monotonic() - start
        if passed > seconds:
            return heard
        if passed > _TERM_SECONDS and not said:
            said = True
            are, they, them = ("is", "It", "it") if len(left) == 1 else ("are", "They", "them")
            SCREEN.say(
                f"{listed(left).capitalize()} {are} still shutting down. {they} may take "
                f"{seconds:g} s (--grace); Ctrl-C ends {them} at once."
            )
        event = next_event(events, 0.05)
        if event is signal.SIGINT:
            return event
        if isinstance(event, signal.Signals) and heard is None:
            seconds, heard = max(seconds, manner.grace), event
    return heard


def run(job: Job, listen: Listen = nullcontext) -> Outcome:
    """Run a job to its end. listen: puts signals into the events for as long as ranks run."""
    queue: Events = SimpleQueue()
    _wait_for_children()
    stall = stall_seconds(job.environ)
    check_descriptors(job.n)
    with ExitStack() as held:
        place = held.enter_context(hosted(job))
        held.enter_context(listen(queue))
        start = time.monotonic()
        ranks = held.enter_context(_started(job, place, queue))
        link = place.link
        if link is not None:
            link.listen(queue.put)
        watch = JobWatch(
            ranks.processes,
            queue,
            link=link,
            expendable=Expendable(place.find),
            start_again=ranks.start_again,
            timeout=job.timeout,
            stall_seconds=stall,
            start=start,
            grows=lambda seconds: grows(job, seconds),
        )
        manner = Manner(grace=job.grace)
        try:
            outcome = watch.until_the_end()
            if outcome.stopped is not None or outcome.grace:
                manner = Manner(outcome.stopped or signal.SIGTERM, job.grace, job.grace)
            if outcome.changes and job.commits is not None and job.nnodes == 1:
                (job.commits / settings.AGAIN).touch()
        except KeyboardInterrupt:
            manner = Manner(signal.SIGINT, job.grace, job.grace)
            raise
        except Exception as error:
            if link is not None:
                link.failed(error)
            raise
        finally:
            heard = end(ranks.processes, queue, manner)
            if link is not None:
                link.close()
    if outcome.changes and job.nnodes == 1 and (heard or ranks.done()):  # it ends all the same
        outcome = Outcome(outcome.seconds, stopped=heard)
    return replace(outcome, shown=ranks.shown(outcome), saved=ranks.saved())


def _wait_for_children() -> None:
    """A parent that ignored SIGCHLD has us do so too, and then nobody can wait for a process."""
    with suppress(ValueError):  # in another thread than the main one it stays as it is
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def _started(job: Job, place: Hosted, queue: Events) -> Iterator[_Ranks]:
    """Start the ranks. However the block is left, none is left behind."""
    guard = Guard()
    ranks = _Ranks(job, place, queue, guard)
    try:
        for cluster in place.places:
            ranks.start(cluster)
        ranks.show()
        yield ranks
    finally:
        ranks.notice.close()
        for process in ranks.processes:  # even where a second Ctrl-C cut the ending short
            process.kill()
        guard.close()


@final
class _Ranks:
    """The processes of this host's ranks; one that is started again takes the former's place."""

    def __init__(self, job: Job, place: Hosted, queue: Events, guard: Guard) -> None:
        self.processes: list[Process] = []
        self.notice = ProcessNotice(JOB)
        self._start = time.time()
        self._job, self._queue, self._guard = job, queue, guard
        self._places = {cluster.rank: cluster for cluster in place.places}

    def start(self, cluster: Cluster) -> None:
        self.processes.append(self._process(cluster, again=self._job.attempt > 0))

    def start_again(self, rank: int) -> None:
        """Start a rank whose process has ended."""
        index = [process.rank for process in self.processes].index(rank)
        self.processes[index].output.finish(0.5)
        self.processes[index] = self._process(self._places[rank], again=True)
        self.show()

    def show(self) -> None:
        """Tell `dream where` which processes these are."""
        self.notice.write(
            {
                "command": self._job.command,
                "world_size": self._job.world_size,
                "attempt": self._job.attempt,
                "start": self._start,
                "ranks": [[process.rank, process.group] for process in self.processes],
            }
        )

    def saved(self) -> bool:
        """Whether every rank saved and left."""
        return self._all_ended_by(settings.GO_ON_LATER)

    def done(self) -> bool:
        """Whether every rank came to its end."""
        return self._all_ended_by(0)

    def _all_ended_by(self, code: int) -> bool:
        endings = [process.ending() for process in self.processes]
        return all(ending is not None and ending.code == code for ending in endings)

    def shown(self, outcome: Outcome) -> frozenset[int]:
        """Return, of those that the outcome names, the ranks whose last words are on screen."""
        cause = outcome.cause
        named = (
            {}
            if cause is None
            else {e.rank: e.text or e.wrote for e in (cause.first, cause.victim) if e}
        )
        return frozenset(p.rank for p in self.processes if p.has_shown(named.get(p.rank, "")))

    def _process(self, cluster: Cluster, *, again: bool) -> Process:
        job, rank = self._job, cluster.rank
        prefixed = job.show == "all" and job.n > 1
        process = Process(
            rank,
            job.command,
            rank_environment(job, cluster),
            Output(rank, job.shows(rank), job.log_dir, prefixed=prefixed, again=again),
        )
        if job.verbose:
            SCREEN.say(f"Rank {rank} {process.origin}.")
        self._guard.add(process.group)
        process.watch(self._queue.put, self._thread_failed)
        return process

    def _thread_failed(self, rank: int, text: str) -> None:
        """Where the rank's own words are on screen, Python has shown it there."""
        if self._job.show != "none" and not self._job.shows(rank):
            quoted = "".join(f"\n  {line}" for line in text.rstrip().splitlines())
            SCREEN.say(f"A thread of rank {rank} died with an error; the rank continues.{quoted}")
