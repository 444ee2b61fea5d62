"""Start a host's ranks, and end them together."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import final

from dream._errors import ConfigurationError
from dream._topology import Cluster
from dream.cluster import _names
from dream.launch.environment import rank_environment
from dream.launch.expendable import Expendable
from dream.launch.guard import Guard
from dream.launch.job import Job
from dream.launch.outcome import Outcome
from dream.launch.output import Output
from dream.launch.place import Hosted, hosted
from dream.launch.process import Process
from dream.launch.watch import Events, Watch, next_event

_TERM_SECONDS = 2.0
"""Between SIGTERM and SIGKILL. TensorFlow catches the first, so the second always comes."""


Listen = Callable[[Events], AbstractContextManager[object]]


def run(job: Job, listen: Listen = nullcontext) -> Outcome:
    """Run a job to its end. listen: puts signals into the events for as long as ranks run."""
    queue: Events = SimpleQueue()
    exit_seconds = _exit_seconds(job)
    with ExitStack() as held:
        place = held.enter_context(hosted(job))
        held.enter_context(listen(queue))
        start = time.monotonic()
        ranks = held.enter_context(_started(job, place, queue))
        link = place.link
        if link is not None:
            link.listen(queue.put)
        watch = Watch(
            ranks.processes,
            queue,
            link=link,
            expendable=Expendable(place.find),
            start_again=ranks.start_again,
            timeout=job.timeout,
            exit_seconds=exit_seconds,
            start=start,
        )
        try:
            outcome = watch.until_the_end()
        finally:
            _end(ranks.processes, queue)
            if link is not None:
                link.close()
    return outcome


def _exit_seconds(job: Job) -> float:
    text = job.environ.get(_names.EXIT_SECONDS) or "60"
    try:
        return float(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{_names.EXIT_SECONDS} must be a number of seconds. Received: {text!r}. "
            "Correct or unset it."
        ) from error


@contextmanager
def _started(job: Job, place: Hosted, queue: Events) -> Iterator[_Ranks]:
    """The running ranks. However the block is left, none is left behind."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="dream-")))
        guard = Guard()
        ranks = _Ranks(job, place, folder, queue, guard)
        held.callback(lambda: _release(guard, ranks.processes))
        held.callback(lambda: _end(ranks.processes, queue))
        for cluster in place.places:
            ranks.start(cluster)
        yield ranks


@final
class _Ranks:
    """The processes of this host's ranks; one that is started again takes the former's place."""

    def __init__(self, job: Job, place: Hosted, folder: Path, queue: Events, guard: Guard) -> None:
        self.processes: list[Process] = []
        self._job, self._folder, self._queue, self._guard = job, folder, queue, guard
        self._places = {cluster.rank: cluster for cluster in place.places}

    def start(self, cluster: Cluster) -> None:
        self.processes.append(self._process(cluster, again=self._job.attempt > 0))

    def start_again(self, rank: int) -> None:
        """A rank whose process has ended."""
        index = [process.rank for process in self.processes].index(rank)
        self.processes[index].output.finish(0.5)
        self.processes[index] = self._process(self._places[rank], again=True)

    def _process(self, cluster: Cluster, *, again: bool) -> Process:
        job, rank = self._job, cluster.rank
        process = Process(
            rank,
            job.command,
            rank_environment(job, cluster),
            self._folder / f"rank{rank}.json",
            Output(rank, _shown(job, rank), job.log_dir, again=again),
        )
        self._guard.add(process.group)
        process.watch(self._queue.put)
        return process


def _release(guard: Guard, processes: Sequence[Process]) -> None:
    """Even where a second Ctrl-C cut the ending short."""
    for process in processes:
        process.send(signal.SIGKILL)
    guard.close()


def _shown(job: Job, rank: int) -> bool:
    return job.show == "all" or (job.show == "first" and rank == 0)


def _end(processes: Sequence[Process], queue: Events) -> None:
    """SIGTERM, then SIGKILL to those that are left, then the rest of their output."""
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _TERM_SECONDS)):
        for process in processes:
            process.send(number)
        limit = time.monotonic() + seconds
        while any(process.running for process in processes) and time.monotonic() < limit:
            next_event(queue, 0.05)
    for process in processes:
        process.output.finish(0.5)
