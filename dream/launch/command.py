"""`dream run`, once its arguments are parsed."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from dream._errors import ConfigurationError
from dream.cluster import _names
from dream.files.whole import is_file
from dream.launch.ending import describe, ranks
from dream.launch.events import Events
from dream.launch.guard import temporary_folder
from dream.launch.job import Job
from dream.launch.nested import refuse_nested
from dream.launch.outcome import Outcome
from dream.launch.screen import SCREEN
from dream.launch.start import run

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def script_command(target: str, arguments: list[str], *, module: bool) -> tuple[str, ...]:
    """What each rank's interpreter is given."""
    if module:
        return ("module", target, *arguments)
    if not is_file(Path(target)):
        raise ConfigurationError(
            f"No such script. Received: {target!r} in {Path.cwd()}. Give the path of a Python "
            "file, or -m and a module."
        )
    return ("script", target, *arguments)


def run_command(job: Job) -> int:
    """Run a job until its end or a signal, again as often as it may be; the exit code, with the
    reason on stderr. ConfigurationError inside another launcher's rank."""
    refuse_nested(job.environ, job.nnodes)
    with temporary_folder("dream-job-") as folder:
        job = replace(job, environ={**job.environ, _names.SNAPSHOTS: str(folder)})
        outcome = _run(job)
        while outcome.cause is not None and job.attempt < job.max_restarts:
            job = replace(job, attempt=job.attempt + 1)
            SCREEN.say(f"Starting again, {job.attempt} of {job.max_restarts}.")
            outcome = _run(job)
    return outcome.exit_code


def _run(job: Job) -> Outcome:
    outcome = run(job, _signals)
    message = explain(outcome, outcome.shown)
    if message:
        SCREEN.say(message)
    return outcome


@contextmanager
def _signals(events: Events) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP as events; the last one as far as nohup does not forbid it."""

    def put(number: int, frame: FrameType | None) -> None:
        del frame
        events.put(signal.Signals(number))

    unheard = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in _STOPPING if number != signal.SIGHUP or not unheard]
    before = {number: signal.signal(number, put) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain(outcome: Outcome, shown: Collection[int] = ()) -> str:
    """The last message; empty where all ended well. shown: ranks whose words are not quoted."""
    if outcome.stopped is not None:
        return f"Stopped by {outcome.stopped.name}. {_ended(outcome)}"
    if outcome.cause is not None:
        return describe(outcome.cause, outcome.seconds, outcome.ended, shown)
    return f"Ended because {outcome.lost}. {_ended(outcome)}" if outcome.lost else ""


def _ended(outcome: Outcome) -> str:
    return f"Ended with it: {ranks(outcome.ended)}." if outcome.ended else "No rank was left."
