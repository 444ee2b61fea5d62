"""Read how fast a machine is, and what a real training takes, in ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

from dream.tools.plan.asked import TrainingSpec

if TYPE_CHECKING:
    from dream._strategy import Strategy

_BLOCK, _READING = 0.02, 0.3
"""Seconds of a block of calls, and of each reading at least."""


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """How fast one rank is: operations a second in matrix products and convolutions, bytes a second
    to and from memory, seconds that each operation costs besides; fresh: seconds of a byte that the
    system must give to the process first."""

    matmul: float
    convolution: float
    bandwidth: float
    launch: float
    fresh: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class TrialJob:
    """Steps that a rank is to run and read.

    batch: the global one, dealt out in `shares`, which neighbouring ranks work on together.
    steps: that are timed. watched: whether bytes are counted as well.
    """

    place: str
    training: TrainingSpec
    batch: int
    shares: int
    steps: int
    watched: bool = True

    def share(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return a rank's samples: first, and one past the last."""
        index = rank // (world_size // self.shares)
        each, more = divmod(self.batch, self.shares)
        first = index * each + min(index, more)
        return first, first + each + (index < more)


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """What a real training took on one rank. peak: bytes of its tensors at most, in a step. given:
    to each collective in a step, bytes; None where they cannot be counted. seconds: of a step,
    each."""

    peak: int
    given: dict[str, int] | None
    seconds: list[float]


def median_seconds(call: Callable[[], Any], wait: Callable[[Any], object] = id) -> float:
    """Return the seconds of one call: the median of blocks. wait: for what the last one gave."""
    call()
    begin = perf_counter()
    wait(call())
    calls = max(1, int(_BLOCK / max(1e-7, perf_counter() - begin)))
    taken: list[float] = []
    while sum(taken) * calls < _READING or len(taken) < 3:
        begin = perf_counter()
        for _ in range(calls):
            last = call()
        wait(last)
        taken.append((perf_counter() - begin) / calls)
    return median(taken)


def step_seconds(step: Callable[[], object], strategy: Strategy, steps: int) -> list[float]:
    """Return the seconds of each of several steps, which all ranks begin together."""
    taken = []
    for _ in range(steps):
        strategy.communicator.barrier()
        begin = perf_counter()
        step()
        taken.append(perf_counter() - begin)
    return taken
