"""A request to leave, and the end of a step at which all ranks hear of it together."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, final

import numpy as np

from dream import cluster
from dream._errors import DreamError
from dream._log import logger
from dream.checkpoint.commits import Commits
from dream.cluster import settings
from dream.collectives import Communicator
from dream.files.store import PatientStore, SharedValues
from dream.stall import activity

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_BEFORE_THE_END = 60.0
"""Seconds before the scheduler's time limit."""
_BETWEEN = 0.25
"""Seconds between two agreements: the ranks talk once in as many steps as take that long."""
_MOST_STEPS = 100
_ECHO_SECONDS = 3.0
"""Slurm signals every process of a step, the launcher too, which passes it on: one request."""

_LOOK_SECONDS = 0.5
"""Between two looks of a rank at the store."""
_LEFT = "the end of its training, its loop being over"
_LOOKS_A_SECOND = 100
"""By which many ranks look less often."""


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
    """What the ranks do at the end of this step, alike on all.

    leaves: whether a rank was asked to. due: whether it is time for a checkpoint. commits: or
    for one in memory. again: whether who leaves starts again at once, from memory.
    """

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


def listening(ranks: Communicator, asked: Callable[[], str]) -> Stop | None:
    """Have this rank hear of what another is asked; None where it is the only one. Every rank calls
    it. asked: says why this rank is to leave; nothing where it is not."""
    place = cluster.detect()
    if ranks.world_size == 1 or place.rendezvous is None:
        return None
    name = f"leave/{ranks.broadcast_object(uuid.uuid4().hex)}"
    store = PatientStore(cluster.rendezvous(place), cluster.stall_seconds())
    return Stop(ranks.rank, ranks.world_size, asked, store, name)


@final
class Stop:
    """The end of a step at which all ranks stop, as one rank sees it.

    Ranks that talk at ends of steps alone may be long on their way to the next such end: in an
    evaluation, in a compilation, in the wait for a loader, in steps that have become slow. So each
    has a thread that hears of a request through the job's store, and says there which end of a step
    this rank has not passed yet. All of them stop at the last of these.

    Each counts the ends of steps that it comes to, which are the same on all. One that has heard
    passes none before all have said theirs; nobody waits for a rank that waits for another, as
    threads say it.
    """

    def __init__(
        self, rank: int, ranks: int, asked: Callable[[], str], store: SharedValues, name: str
    ) -> None:
        """name: of the keys, for this training of this job alone."""
        self._rank, self._ranks, self._asked = rank, ranks, asked
        self._store, self._name = store, name
        self._look = max(_LOOK_SECONDS, ranks / _LOOKS_A_SECOND)
        self._lock = threading.Lock()
        self._passed = 0
        self._said = False
        self._at: int | None = None
        self._spoken, self._known, self._over = (threading.Event() for _ in range(3))
        threading.Thread(target=self._run, name="dream-leave", daemon=True).start()

    def came(self) -> bool:
        """An end of a step has come. Return, on every rank alike, whether all stop here."""
        with self._lock:
            self._passed += 1
            number, waits = self._passed, self._said
        if waits:
            self._known.wait()
        return number == self._at

    def ended(self) -> bool:
        """The last end of a step has come. Wait for all ranks to come here, as long as it takes;
        return, on every rank alike, whether they leave."""
        self._store.put(self._key("end"), b"1")
        with activity.waiting(_LEFT, patient=True):
            for rank in range(self._ranks):
                self._read(f"end/{rank}")
        self._over.set()
        self._known.wait()
        return self._at is not None

    def rest(self, *, failed: bool) -> None:
        """No end of a step follows, which others are told that are asked. failed: they end
        otherwise."""
        self._over.set()
        if not failed:
            self._spoken.wait()

    def _run(self) -> None:
        try:
            with suppress(DreamError, OSError):  # the store is gone, and so is the job
                self._listen()
        finally:
            self._spoken.set()
            self._known.set()

    def _listen(self) -> None:
        asked = f"{self._name}/asked"
        while not (why := self._asked()) and self._store.find(asked) is None:
            if self._over.wait(self._look):
                why = self._asked()
                break
        if why:
            self._store.put(asked, b"1")
        with self._lock:
            self._said = True
            mine = self._passed + 1
        self._store.put(self._key("next"), str(mine).encode())
        self._spoken.set()
        last = max(int(self._read(f"next/{rank}")) for rank in range(self._ranks))
        if self._store.find(asked) is not None:  # by whoever was, before it said its next
            self._at = last

    def _key(self, what: str) -> str:
        return f"{self._name}/{what}/{self._rank}"

    def _read(self, key: str) -> bytes:
        while (said := self._store.find(f"{self._name}/{key}")) is None:
            time.sleep(self._look / 10)
        return said
