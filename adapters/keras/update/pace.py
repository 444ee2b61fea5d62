"""Shares of `fit` that follow the ranks' speeds, measured within its steps."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

from dream.collectives import Communicator
from dream.data.pace import WARM, Speeds, Taken
from dream.data.partition import Divided


class StepClock(ABC):
    """Adds up what steps take from their batch to the first sum over the ranks, in which they wait
    for one another."""

    @abstractmethod
    def begun(self, samples: Any, batch: Any) -> Any:
        """Return a step's batch, of so many samples of this rank's. Time counts from here on."""

    @abstractmethod
    def forget(self) -> None:
        """A step begins: one before it may have ended in an error, unstopped."""

    @abstractmethod
    def stop(self, tensors: Sequence[Any]) -> None:
        """The tensors, which are about to be added up, are computed. Later sums of the step count
        no more."""

    @abstractmethod
    def taken(self) -> tuple[int, float]:
        """Return the samples and seconds that have been added up, and begin anew."""


@final
class KerasPace:
    """Has the shares of a model's batches follow the ranks' speeds.

    clock: what a rank's own work takes. divided: what is changed, on all ranks alike.
    """

    def __init__(self, ranks: Communicator, divided: Divided, clock: StepClock) -> None:
        self._speeds, self.clock = Speeds(ranks, divided), clock
        self._batches = -WARM

    def before_step(self, batches: int, blind: Callable[[], bool]) -> bool:
        """Compare now and then, before so many batches; tell whether they are divided otherwise
        from here on. Every rank calls it. blind: whether ranks wait for one another as they
        compute."""
        if self._speeds.over:
            return False
        due, before = self._speeds.due(batches), self._batches
        self._batches += batches
        if before <= 0:  # the clock has counted since the call before, of several batches maybe
            self.clock.taken()
            self._batches = min(self._batches, 0) if before else batches
        if before <= 0 or not due:
            return False
        self._batches = batches
        return self._speeds.compare(Taken(*self.clock.taken(), before), blind=blind())


@final
class EagerClock(StepClock):
    """Operations are over when they return, on a CPU."""

    def __init__(self) -> None:
        self._samples, self._seconds = 0, 0.0
        self._began: tuple[int, float] | None = None

    def begun(self, samples: Any, batch: Any) -> Any:
        self._began = int(samples), time.perf_counter()
        return batch

    def forget(self) -> None:
        self._began = None

    def stop(self, tensors: Sequence[Any]) -> None:
        del tensors
        if self._began is not None:
            samples, began = self._began
            self._began = None
            self._samples += samples
            self._seconds += time.perf_counter() - began

    def taken(self) -> tuple[int, float]:
        found = self._samples, self._seconds
        self._samples, self._seconds = 0, 0.0
        return found
