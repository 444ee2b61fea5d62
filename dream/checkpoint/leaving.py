"""A request to leave, and the end of a step at which all ranks hear of it together.

The ranks talk at ends of steps a few times a second; but a rank may be long on its way to the next
of those: in an evaluation, in a compilation, waiting for its loader. So each has a thread too, that
tells the others through the job's store as soon as a signal has come, and which end of a step this
rank has not passed yet; all of them stop at the last of these.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, final

import numpy as np

from dream import cluster
from dream._errors import DreamError
from dream._log import logger
from dream.cluster import settings
from dream.collectives import Communicator
from dream.files.store import SharedValues

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_BEFORE_THE_END = 60.0
"""Seconds before the scheduler's time limit."""

_BETWEEN = 0.25
"""Seconds between two agreements: the ranks talk once in as many steps as take that long."""

_BETWEEN_LOOKS = 0.5
"""Seconds between two looks of a rank at the job's store."""

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
        self._listens = False

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
        if self._heard and again:
            signal.raise_signal(signal.Signals[self._heard])

    def forget(self) -> None:
        """What was asked is met, or no longer matters."""
        self._heard = ""

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
    """leaves: whether a rank was asked to. due: whether it is time for a checkpoint."""

    leaves: bool
    due: bool


def leave(notice: Notice, place: Path) -> NoReturn:
    """Leave with the exit code that says so, having saved."""
    why = f" ({notice.why})" if notice.why else ""
    logger.info("Asked to leave%s: saved as %s. Start the job again to go on.", why, place)
    raise SystemExit(settings.GO_ON_LATER)


@final
class Stop:
    """The end of a step at which all ranks stop that are asked to leave. Each counts those that it
    comes to, which are the same on every rank.

    A rank that has heard of it says which it has not passed, and passes none before all have said
    theirs: the last of these is where they stop. Nobody waits for a rank that waits for another, as
    threads say it.
    """

    def __init__(
        self, rank: int, ranks: int, notice: Notice, store: SharedValues, name: str
    ) -> None:
        """name: of the keys, for this job and training alone."""
        self._rank, self._ranks, self._notice = rank, ranks, notice
        self._store, self._name = store, name
        self._lock = threading.Lock()
        self._passed = 0
        self._said: int | None = None
        self._at: int | None = None
        self._known, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, name="dream-leave", daemon=True).start()

    def came(self) -> bool:
        """An end of a step has come. Return whether all ranks stop here."""
        with self._lock:
            self._passed += 1
            number, waits = self._passed, self._said is not None
        if waits:
            self._known.wait()
        return self._at is not None and number >= self._at

    def rest(self) -> None:
        self._over.set()
        self._known.set()

    def _listen(self) -> None:
        with suppress(DreamError, OSError):  # the store is gone, and so is the job
            while not (self._notice.why or self._store.find(f"{self._name}/asked")):
                if self._over.wait(_BETWEEN_LOOKS):
                    return
            self._store.put(f"{self._name}/asked", b"1")
            with self._lock:
                self._said = self._passed + 1
            self._store.put(f"{self._name}/{self._rank}", str(self._said).encode())
            self._at = max(self._told(rank) for rank in range(self._ranks))
        self._known.set()

    def _told(self, rank: int) -> int:
        """Return the end of a step that a rank has not passed."""
        while (found := self._store.find(f"{self._name}/{rank}")) is None:
            if self._over.wait(_BETWEEN_LOOKS / 10):
                return 0
        return int(found)


@final
class StepEnds:
    """The ends of steps, which every rank comes to in the same order.

    every: seconds between two checkpoints, by rank 0's clock; None for never.
    """

    def __init__(self, ranks: Communicator, notice: Notice, every: float | None) -> None:
        self._ranks, self._notice, self._every = ranks, notice, every
        self._saved = self._looked = time.monotonic()
        self._steps, self._next = 0, 1
        self._stop: Stop | None = None

    def listen(self) -> None:
        """Hear at once of what another rank is asked. Every rank calls it."""
        place = cluster.detect()
        if self._stop is not None or place.rendezvous is None or self._ranks.world_size == 1:
            return
        name = f"leave/{self._ranks.broadcast_object(uuid.uuid4().hex)}"
        store = cluster.rendezvous(place)
        self._stop = Stop(self._ranks.rank, self._ranks.world_size, self._notice, store, name)

    def rest(self) -> None:
        if self._stop is not None:
            self._stop.rest()

    def came(self, *, ask: bool = False) -> Agreed | None:
        """Return what the ranks agreed on, where they talk at this one. ask: have them do so."""
        self._steps += 1
        if self._stop is not None and self._stop.came():
            return Agreed(leaves=True, due=False)
        alone = self._ranks.world_size == 1 and bool(self._notice.why)
        if self._steps < self._next and not (ask or alone):
            return None
        now = time.monotonic()
        due = self._every is not None and now - self._saved >= self._every
        steps = self._steps_until_next(now)
        leads = self._ranks.rank == 0
        own = np.array([bool(self._notice.why), leads and due, steps if leads else 0], np.int64)
        leaves, due, steps = self._ranks.all_reduce(own, "max").tolist()
        self._looked, self._steps, self._next = now, 0, steps
        if due:
            self._saved = now
        return Agreed(bool(leaves), bool(due))

    def _steps_until_next(self, now: float) -> int:
        """At most twice as many as last time, and a hundred: steps may become slower."""
        each = (now - self._looked) / self._steps
        return int(min(max(_BETWEEN / max(each, 1e-6), 1), 2 * self._next, _MOST_STEPS))
