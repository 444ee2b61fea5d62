"""Learning rate schedules where a worker makes only some of the updates.

A schedule that a loop steps with each batch goes by the job's updates, not by this worker's own:
it is stepped on by as many as there were since it was last called. One that is stepped between
passes counts epochs, as it does on one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary

from dream.parameter_server.worker import Worker


@dataclass(slots=True)
class _Marks:
    """Updates of the job and pushes of this worker at a schedule's last call; owed: the part of a
    step that is left over."""

    updates: int = 0
    pushes: int = 0
    owed: float = 0.0


@final
class JobSchedules:
    """The schedules that are made in the block."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._inside = False
        self._marks: WeakKeyDictionary[Any, _Marks] = WeakKeyDictionary()

    def take(self, schedule: Any) -> None:
        """Have a schedule's steps go by the job's updates."""
        if schedule not in self._marks:
            self._marks[schedule] = _Marks()
            schedule.__class__ = self._stepped_class(type(schedule))

    def _stepped_class(self, base: type[Any]) -> type[Any]:
        schedules = self

        def step(self: Any, *args: Any, **kwargs: Any) -> None:
            for _ in range(1 if args or kwargs else schedules.due(self)):
                with schedules._running():
                    base.step(self, *args, **kwargs)

        return type(base.__name__, (base,), {"step": step, "__module__": base.__module__})

    def due(self, schedule: Any) -> int:
        """Return how many steps of one device a call stands for. One schedule's calls of another
        are its own affair."""
        marks, worker = self._marks[schedule], self._worker
        updates, pushes = worker.updates - marks.updates, worker.pushes - marks.pushes
        if self._inside or not worker.inside or not pushes:
            return 1
        marks.updates, marks.pushes = worker.updates, worker.pushes
        marks.owed += updates / pushes
        whole = int(marks.owed)
        marks.owed -= whole
        return whole

    @contextmanager
    def _running(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before
