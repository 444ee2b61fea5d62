"""What a task tells while it trains, and the clock that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, final

from dream import _process
from dream._topology import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dream.communication import Communicator


@dataclass(frozen=True, slots=True)
class Learned:
    """What a task returns.

    parameters: named and laid out alike in every framework (kernels (inputs, outputs)).
    score: over the whole test set: accuracy, or R2.
    communicator: what adds the gradients up among the ranks; None where servers do.
    batches: one pass over what this rank was fed, None where only training reads it.
    gradient: a tensor of the framework's own with as many elements as all gradients together. Both
        are for timing after the training.
    """

    parameters: Mapping[str, NDArray[np.float32]]
    score: float
    topology: Topology
    communicator: Communicator | None
    batches: Callable[[], Iterable[Any]] | None
    gradient: Any


@dataclass(frozen=True, slots=True)
class Mark:
    """steps, samples: so far; sent: bytes over sockets so far, None where nobody counts."""

    clock: float
    steps: int
    samples: int
    sent: int | None


@final
class Meter:
    """Counts samples and notes when.

    losses: one per epoch; first_step: when the first step was done, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.first_step = 0.0
        self.steps = 0
        self._marks: list[Mark] = []

    def step(self, samples: int) -> None:
        """A step is done, on a global batch of so many samples. Only the first is noted."""
        self.steps += 1
        if not self._marks:
            self.first_step = time()
            self._mark(samples)

    def epoch(self, loss: float, samples: int) -> None:
        """An epoch is done. loss: the mean over its samples of the training loss, global."""
        self.losses.append(loss)
        self._mark(samples * len(self.losses))

    def _mark(self, samples: int) -> None:
        self._marks.append(Mark(perf_counter(), self.steps, samples, _process.bytes_sent()))

    @property
    def samples_per_second(self) -> float:
        """After the warm-up."""
        start, stop = self._measured
        return (stop.samples - start.samples) / (stop.clock - start.clock)

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
    def _measured(self) -> tuple[Mark, Mark]:
        """From the end of the warm-up, which is the first epoch, or where there is but one, its
        first step, to the end."""
        return self._marks[1 if len(self.losses) > 1 else 0], self._marks[-1]
