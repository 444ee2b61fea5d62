"""What a task tells while it trains, and the clock that goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter, time
from typing import TYPE_CHECKING, final

from dream._topology import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Learned:
    """What a task returns.

    parameters: named and laid out alike in every framework (kernels (inputs, outputs)).
    accuracy: over the whole test set, in 0..1.
    reduction: who added the gradients up among the ranks.
    """

    parameters: Mapping[str, NDArray[np.float32]]
    accuracy: float
    topology: Topology
    reduction: str


@final
class Meter:
    """Counts samples and notes when.

    losses: one per epoch; first_step: when the first step was done, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.first_step = 0.0
        self._marks: list[tuple[float, int]] = []

    def step(self, samples: int) -> None:
        """A step is done, on a global batch of so many samples. Only the first is noted."""
        if not self._marks:
            self.first_step = time()
            self._marks.append((perf_counter(), samples))

    def epoch(self, loss: float, samples: int) -> None:
        """An epoch is done. loss: the mean over its samples of the training loss, global."""
        self.losses.append(loss)
        self._marks.append((perf_counter(), samples * len(self.losses)))

    @property
    def samples_per_second(self) -> float:
        """After the warm-up: the first epoch, or where there is but one, its first step."""
        start, seen = self._marks[1 if len(self.losses) > 1 else 0]
        stop, total = self._marks[-1]
        return (total - seen) / (stop - start)
