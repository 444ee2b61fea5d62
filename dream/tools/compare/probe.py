"""What a step is made of, read after the training in the same ranks: how long the data alone take,
and how long the same number of bytes take to be reduced by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dream import cluster

if TYPE_CHECKING:
    from dream.collectives import Communicator
    from dream.tools.compare.meter import Learned

_CALLS = 11
"""All-reduces that are timed, after one that is not."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step.

    feeding: to have the next batch, the mean over a pass in which nothing is trained.
    reducing: one all_reduce of as many bytes as the gradients have, the median; None where no
    other rank takes part. None, None: not read.
    """

    feeding: float | None = None
    reducing: float | None = None


def measure(learned: Learned, steps: int) -> Parts:
    """Every rank comes here. steps: of an epoch."""
    if cluster.frameworks_differ():  # such ranks read data in step, and compare what they read
        return Parts()
    if learned.communicator is None:  # so do workers in step with one another, and step on it
        return Parts()
    return Parts(_feeding(learned, steps), _reducing(learned, learned.communicator))


def _feeding(learned: Learned, steps: int) -> float | None:
    if learned.batches is None:
        return None
    start = perf_counter()
    for _ in learned.batches():
        pass
    return (perf_counter() - start) / max(1, steps)


def _reducing(learned: Learned, communicator: Communicator) -> float | None:
    if learned.topology.world_size == 1:
        return None
    alike = communicator.unchecked()  # as in a step, nobody asks what the others reduce
    return median([_timed(alike, learned.gradient) for _ in range(_CALLS + 1)][1:])


def _timed(communicator: Any, gradient: Any) -> float:
    communicator.barrier()
    start = perf_counter()
    communicator.all_reduce(gradient)
    return perf_counter() - start
