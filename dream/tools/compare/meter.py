"""Meter a task while it trains: losses, scores, samples, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, final

from dream._topology import Topology
from dream.parameter_server.staleness import Staleness
from dream.tools import machine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dream.collectives import Communicator


@dataclass(frozen=True, slots=True)
class Learned:
    """A task's result.

    parameters: named and laid out alike in every framework (kernels (inputs, outputs)).
    communicator: what adds the gradients up among the ranks; None where servers do.
    batches: one pass over what this rank was fed, None where only training reads it.
    gradient: a tensor of the framework's own with as many elements as all gradients together. Both
        are for timing after the training.
    staleness: of all updates, where they may be stale.
    """

    parameters: Mapping[str, NDArray[np.float32]]
    topology: Topology
    communicator: Communicator | None
    batches: Callable[[], Iterable[Any]] | None
    gradient: Any
    staleness: Staleness | None = None


@dataclass(frozen=True, slots=True)
class MeterReading:
    """What a meter shows.

    steps, samples: so far; sent: bytes over sockets so far, None where nobody counts.
    """

    clock: float
    steps: int
    samples: int
    sent: int | None


@final
class Meter:
    """Counts samples and notes when, by a clock that all ranks of a machine share.

    losses, scores: one per epoch; first_step: when the first step was done, in seconds since 1970.
    slow: how many times as long as it does each step is to take; only in line with the steps.
    """

    def __init__(self, slow: float = 1.0) -> None:
        self.losses: list[float] = []
        self.scores: list[float] = []
        self.first_step = 0.0
        self.steps = 0
        self.slow = slow
        self._counting = Lock()
        self._marks: list[MeterReading] = []
        self._began = self._step_began = 0.0
        self._aside = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._step_began = monotonic()
        self._began = self._began or self._step_began

    def step(self, samples: int) -> None:
        """A step is done, on a global batch of so many samples. Only the first is noted. Keras may
        tell of several steps at the same time, in threads."""
        if self.slow > 1:
            sleep((self.slow - 1) * (monotonic() - self._step_began))
        with self._counting:
            self.steps += 1
            self.first_step = self.first_step or time()
            if not self._marks:
                self._mark(samples)

    def epoch(self, loss: float, samples: int) -> None:
        """An epoch is done, by all replicas. loss: the mean over its samples of the training loss,
        global. A worker that waits for nobody may have come too late for a batch of the first."""
        if not self._marks:
            self._began = self._began or monotonic()
            self._mark(0)
        self.losses.append(loss)
        self._mark(samples * len(self.losses))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is done inside is no training, and its time counts for nothing."""
        start = monotonic()
        try:
            yield
        finally:
            self._aside += monotonic() - start

    def _mark(self, samples: int) -> None:
        now = monotonic() - self._aside
        self._marks.append(MeterReading(now, self.steps, samples, machine.bytes_sent()))

    @property
    def epoch_seconds(self) -> list[float]:
        """From the beginning of the first step to the end of each epoch."""
        return [mark.clock - self._began for mark in self._marks[1:]]

    @property
    def window(self) -> tuple[float, float, int]:
        """When the warm-up ended and the training, and the samples between."""
        start, stop = self._measured
        return start.clock, stop.clock, stop.samples - start.samples

    @property
    def step_seconds(self) -> float:
        """Of a step after the warm-up, the mean."""
        start, stop = self._measured
        return (stop.clock - start.clock) / max(1, stop.steps - start.steps)

    @property
    def sent_per_step(self) -> float | None:
        """Bytes that this rank sent over sockets, in a step after the warm-up."""
        start, stop = self._measured
        if start.sent is None or stop.sent is None or stop.steps == start.steps:
            return None
        return (stop.sent - start.sent) / (stop.steps - start.steps)

    @property
    def _measured(self) -> tuple[MeterReading, MeterReading]:
        """From the end of the warm-up, which is the first epoch, or where there is but one, its
        first step, to the end."""
        return self._marks[1 if len(self.losses) > 1 else 0], self._marks[-1]
