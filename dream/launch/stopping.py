"""End a host's ranks together, each with everything it started."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dream.launch.ending import ranks
from dream.launch.events import Events, next_event
from dream.launch.output import finish
from dream.launch.process import Process
from dream.launch.screen import SCREEN

_SECONDS = 2.0
"""After a failure, between SIGTERM and SIGKILL. Frameworks catch the first, so the second always
comes; also, how long the system may take for the second."""

_STREAM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Manner:
    """How ranks are ended: by a signal, and by SIGKILL those that are left `grace` seconds later.

    grace: given by who stopped the job from outside, for ranks that save what they have.
    """

    number: signal.Signals = signal.SIGTERM
    seconds: float = _SECONDS
    grace: float = _SECONDS


def end(processes: Sequence[Process], events: Events, manner: Manner) -> None:
    """Return once they are gone, and their output has been read.

    A rank gets the signal itself, its children go when it is gone. Ctrl-C meanwhile ends the wait
    at once; another signal means that the job is stopped from outside, and gives ranks the grace.
    """
    for process in processes:
        process.ask(manner.number)
    _wait(processes, events, manner)
    for process in processes:
        process.kill()
    limit = time.monotonic() + _SECONDS
    while any(process.running for process in processes) and time.monotonic() < limit:
        next_event(events, 0.05)
    finish([process.output for process in processes], _STREAM_SECONDS)


def _wait(processes: Sequence[Process], events: Events, manner: Manner) -> None:
    start = time.monotonic()
    seconds, said, extended = manner.seconds, False, False
    while left := [process.rank for process in processes if process.running]:
        passed = time.monotonic() - start
        if passed > seconds:
            return
        if passed > _SECONDS and not said:
            said = True
            SCREEN.say(
                f"{ranks(left).capitalize()} still end. They may take {seconds:g} s (--grace); "
                "Ctrl-C ends them at once."
            )
        event = next_event(events, 0.05)
        if event is signal.SIGINT:
            return
        if isinstance(event, signal.Signals) and not extended:
            seconds, extended = max(seconds, manner.grace), True
