"""Start a host's ranks, and end them together."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue

from dream._errors import ConfigurationError
from dream.cluster import _names

from .environment import rank_environment
from .guard import Guard
from .job import Job
from .link import Link
from .outcome import Outcome
from .output import Output
from .place import Hosted, hosted
from .process import Process
from .watch import Events, Watch, next_event

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
        processes = held.enter_context(_started(job, place, queue))
        link = None if place.shared is None else Link(job, place.shared, queue.put)
        watch = Watch(
            processes,
            queue,
            link=link,
            timeout=job.timeout,
            exit_seconds=exit_seconds,
            start=start,
        )
        try:
            outcome = watch.until_the_end()
        finally:
            _end(processes, queue)
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
def _started(job: Job, place: Hosted, queue: Events) -> Iterator[tuple[Process, ...]]:
    """The running ranks. However the block is left, none is left behind."""
    processes: list[Process] = []
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="dream-")))
        guard = Guard()
        held.callback(lambda: _release(guard, processes))
        held.callback(lambda: _end(processes, queue))
        for cluster in place.places:
            process = Process(
                cluster.rank,
                job.command,
                rank_environment(job, cluster),
                folder / f"rank{cluster.rank}.json",
                Output(cluster.rank, _shown(job, cluster.rank), job.log_dir),
            )
            processes.append(process)
            guard.add(process.group)
            process.watch(queue.put)
        yield tuple(processes)


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
