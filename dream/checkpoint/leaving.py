"""A request to leave, and the end of a step at which all ranks hear of it together."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, final

import numpy as np

from dream._log import logger
from dream.checkpoint.commits import Commits
from dream.checkpoint.stop import Stop, listening
from dream.cluster import settings
from dream.collectives import Communicator

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_BEFORE_THE_END = 60.0
"""Seconds before the scheduler's time limit."""

_BETWEEN = 0.25
"""Seconds between two agreements: the ranks talk once in as many steps as take that long."""

_MOST_STEPS = 100
_ECHO_SECONDS = 3.0
"""Slurm signals every process of a step, the launcher too, which passes it on: one request."""


@final
class Notice:
    """Whether this rank was asked to leave: by SIGTERM, SIGUSR1 or the end of Slurm's time."""

    def __init__(self, end: float) -> None:
        """end: of the scheduler's time, in seconds since the epoch."""
        self._until = end - _BEFORE_THE_END
        self._heard = ""
        self._heard_at = 0.0
        self._listens = self._met = False

    def listen(self) -> None:
        """Take the signals that the script has no handler for. A second one, that is no echo of the
        first, ends the process."""
        if self._listens or threading.current_thread() is not threading.main_thread():
            return
        self._listens = True
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._hear)

    def rest(self, *, again: bool = True) -> None:
        """No step ends any more: signals do again what they did. again: one that came meanwhile
        too."""
        self._listens = False
        for number in _SIGNALS:
            if signal.getsignal(number) == self._hear:
                signal.signal(number, signal.SIG_DFL)
        if self._heard and again and not self._met:
            signal.raise_signal(signal.Signals[self._heard])

    def met(self) -> None:
        """What was asked for is done."""
        self._met = True

    def _hear(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self._heard:
            self._heard, self._heard_at = signal.Signals(number).name, now
        elif now - self._heard_at > _ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    @property
    def why(self) -> str:
        """Return what asked for it; empty where nothing did."""
        return self._heard or ("the scheduler's time limit" if time.time() > self._until else "")


@final
@dataclass(frozen=True, slots=True)
class Agreed:
    """leaves: whether a rank was asked to. due: whether it is time for a checkpoint. commits: or
    for one in memory. again: whether who leaves starts again at once, from memory."""

    leaves: bool
    due: bool
    commits: bool = False
    again: bool = False


def leave(notice: Notice, place: Path | None) -> NoReturn:
    """Leave with the exit code that says so, having saved. place: None for in memory, from where
    the launcher goes on at once."""
    notice.met()
    why = f" ({notice.why})" if notice.why else ""
    if place is not None:
        logger.info("Asked to leave%s: saved as %s. Start the job again to continue.", why, place)
    raise SystemExit(settings.GO_ON_LATER)


@final
class StepEnds:
    """The ends of steps, which every rank comes to in the same order.

    every: seconds between two checkpoints, by rank 0's clock; None for never. One that training
    went on from in memory is on disk soon.
    """

    def __init__(
        self, ranks: Communicator, notice: Notice, every: float | None, commits: Commits
    ) -> None:
        self._ranks, self._notice, self._every = ranks, notice, every
        self._commits = commits
        self._saved = self._looked = time.monotonic()
        self._steps, self._next = 0, 1
        self._stop: Stop | None = None
        self._alone = ranks.world_size == 1

    def listen(self) -> None:
        """Hear at once of what another rank is asked. Every rank calls it."""
        self._notice.listen()
        if self._stop is None:
            self._stop = listening(self._ranks, lambda: self._notice.why)

    def ended(self) -> Agreed | None:
        """The last one has come. Wait for all ranks; return what they agreed on, where they
        leave."""
        leaves = bool(self._notice.why) if self._alone else self._stop and self._stop.ended()
        return self.came(ask=True) if leaves else None

    def rest(self, *, failed: bool = False) -> None:
        """No end of a step follows. failed: by an exception, or by leaving after a checkpoint."""
        if self._stop is not None:
            self._stop.rest(failed=failed)
            self._stop = None
        self._notice.rest(again=not failed)

    def came(self, *, ask: bool = False) -> Agreed | None:
        """Return what the ranks agreed on, where they talk at this one. ask: have them do so."""
        self._steps += 1
        stops = bool(self._notice.why) if self._alone else self._stop and self._stop.came()
        talks = self._commits.step_ended() or self._steps >= self._next
        if not (stops or talks or ask):
            return None
        now = time.monotonic()
        late = self._commits.ahead or now - self._saved >= (self._every or 0.0)
        due = self._every is not None and late
        steps = self._steps_until_next(now)
        own = np.array([bool(self._notice.why), 0, 0, 0], np.int64)
        if self._ranks.rank == 0:
            own[1:] = due, steps, 2 if self._commits.again else self._commits.due()
        leaves, due, steps, commits = self._ranks.all_reduce(own, "max").tolist()
        self._looked, self._steps, self._next = now, 0, steps
        if due:
            self._saved, self._commits.ahead = now, False
        return Agreed(bool(leaves), bool(due), commits == 1 and not due, commits == 2)

    def _steps_until_next(self, now: float) -> int:
        """At most twice as many as last time, and a hundred: steps may become slower."""
        each = (now - self._looked) / self._steps
        return int(min(max(_BETWEEN / max(each, 1e-6), 1), 2 * self._next, _MOST_STEPS))
