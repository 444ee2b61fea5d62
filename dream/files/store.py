"""What ranks leave for one another on the job's store, asked with patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar, final

from dream._errors import WorkerFailed

T = TypeVar("T")
_PATIENCE, _WAIT = 10.0, 0.1
"""Seconds for a store that does not answer, but is there; and between two questions."""


class SharedValues(Protocol):
    """Small values that all ranks see: what is put is there for whoever looks later."""

    def put(self, key: str, value: bytes) -> None: ...
    def find(self, key: str) -> bytes | None: ...
    def delete(self, key: str) -> None: ...


@final
class PatientStore:
    """A store that may be slow to answer. WorkerFailed where nothing listens any more.

    seconds: how long a store is waited for that is there, and says nothing: whoever serves it may
    be stopped.
    """

    def __init__(self, store: SharedValues, seconds: float = _PATIENCE) -> None:
        self._store, self._seconds = store, seconds

    def put(self, key: str, value: bytes) -> None:
        self._asked(lambda: self._store.put(key, value))

    def find(self, key: str) -> bytes | None:
        return self._asked(lambda: self._store.find(key))

    def delete(self, key: str) -> None:
        self._asked(lambda: self._store.delete(key))

    def _asked(self, call: Callable[[], T]) -> T:
        began = time.monotonic()
        while True:
            try:
                return call()
            except OSError as error:
                patience = self._seconds if isinstance(error, TimeoutError) else _PATIENCE
                refused = isinstance(error, ConnectionRefusedError)
                if refused or time.monotonic() > began + patience:
                    raise WorkerFailed(
                        "Rank 0, or the launcher, is gone: the job's store does not answer. "
                        f"Received: {error}. Ranks use it to coordinate which files they save: "
                        "find out why it exited.",
                        rank=0,
                    ) from error
            time.sleep(_WAIT)
