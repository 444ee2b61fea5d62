"""The end of a step at which all ranks stop of which one was asked to leave.

Ranks that talk at ends of steps alone may be long on their way to the next such end: in an
evaluation, in a compilation, in the wait for a loader, in steps that have become slow. So each has
a thread that hears of a request through the job's store, and says there which end of a step this
rank has not passed yet. All of them stop at the last of these.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import final

from dream import cluster
from dream._errors import DreamError
from dream.collectives import Communicator
from dream.files.store import PatientStore, SharedValues
from dream.stall import activity

_LOOK_SECONDS = 0.5
"""Between two looks of a rank at the store."""

_LEFT = "the end of its training, its loop being over"

_LOOKS_A_SECOND = 100
"""By which many ranks look less often."""


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
    """As one rank sees it. Each counts the ends of steps that it comes to, which are the same on
    all. One that has heard passes none before all have said theirs; nobody waits for a rank that
    waits for another, as threads say it."""

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
