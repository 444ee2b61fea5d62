"""Check what is to be measured, and turn times into figures.

Bus bandwidth is that of NCCL's tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): bytes by
second, times a factor for the operation which makes it the speed that the links between P ranks
must have had, whatever P is. The size there is that of the larger side: what a rank gives to
all_reduce, reduce, broadcast, reduce_scatter, scatter and all_to_all, what comes of all_gather
and gather.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from statistics import quantiles

from dream._errors import ConfigurationError, unknown
from dream.tools.jobs import check_enough

ELEMENT = 4
"""Bytes of a float32, which is what is measured."""

FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
}
"""By operation."""


def bus_bandwidth(operation: str, size: int, seconds: float, ranks: int) -> float:
    """Return bytes a second. size: in bytes, of the larger side."""
    return size / seconds * FACTORS[operation](ranks)


def naive(size: int, ranks: int) -> Sequence[float]:
    """N(P-1) at the master, N elsewhere."""
    return [size * (ranks - 1), *[size] * (ranks - 1)]


def ring(size: int, ranks: int) -> Sequence[float]:
    """2N(P-1)/P everywhere, where P divides the elements."""
    return [2 * size * (ranks - 1) / ranks] * ranks


def halving_doubling(size: int, ranks: int) -> Sequence[float]:
    """Rabenseifner's: 2N(C-1)/C within C ranks, the largest power of two, where C divides the
    elements. Ranks beyond it hand theirs to a partner, which returns the result: N more each."""
    core = 1 << (ranks.bit_length() - 1)
    within = 2 * size * (core - 1) / core
    extra = ranks - core
    return [within + size * (rank < extra) for rank in range(core)] + [size] * extra


SENT: Mapping[str, Callable[[int, int], Sequence[float]]] = {
    "naive": naive,
    "ring": ring,
    "halving_doubling": halving_doubling,
}
"""Algorithm of all_reduce -> (bytes, ranks) -> what each rank sends, in bytes."""


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Which collectives are timed, and for how long.

    sizes: in bytes; algorithms: of all_reduce, beside the transports' own; rounds: how often
    each is read; timeout: seconds that one framework's job may take.
    """

    n: int
    operations: Sequence[str]
    sizes: Sequence[int]
    algorithms: Sequence[str]
    rounds: int
    timeout: float

    def __post_init__(self) -> None:
        if self.n < 2:
            raise ConfigurationError(
                f"A collective needs at least two ranks. Received: n={self.n}. Pass -n 2 or more."
            )
        check_enough("measure", {"rounds=": self.rounds, "timeout=": self.timeout})
        for operation in self.operations:
            if operation not in FACTORS:
                raise unknown("operation", operation, FACTORS)
        for algorithm in self.algorithms:
            if algorithm not in SENT:
                raise unknown("algorithm of all_reduce", algorithm, SENT)
        if self.algorithms and "all_reduce" not in self.operations:
            raise ConfigurationError(
                "Only all_reduce has algorithms to choose from. Received: --algorithm "
                f"{','.join(self.algorithms)}, --operations {','.join(self.operations)}. Add "
                "all_reduce to the operations."
            )

    def elements(self, size: int) -> int:
        """float32 elements of at least so many bytes: a multiple of the ranks, and of the largest
        power of two among them, so that every formula is exact."""
        step = lcm(self.n, 1 << (self.n.bit_length() - 1))
        return -(-size // (ELEMENT * step)) * step


MEMCPY = "memcpy"


@dataclass(frozen=True, slots=True)
class Reading:
    """The ranks' reading of one contender.

    contender: a transport, an algorithm, or memcpy. seconds: of one call on the slowest rank,
    one figure a round. sent: bytes that each rank counted in one call, of an algorithm.
    """

    operation: str
    size: int
    contender: str
    calls: int
    seconds: Sequence[float]
    sent: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Quartiles:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Timing:
    """A line of the table of timings.

    contender: a transport or an algorithm. size: bytes, as in cost. bus_bandwidth, memcpy: bytes
    a second; memcpy: of every rank while all copy as many bytes. sent: by each rank in one call
    of an algorithm, as counted; formula: as the textbook has it.
    """

    framework: str
    operation: str
    size: int
    contender: str
    seconds: Quartiles
    bus_bandwidth: float
    memcpy: float
    calls: int
    sent: Sequence[int] | None = None
    formula: Sequence[float] | None = None

    @property
    def against_memcpy(self) -> float:
        return self.bus_bandwidth / self.memcpy

    @property
    def is_algorithm(self) -> bool:
        return self.formula is not None


def spread(values: Sequence[float]) -> Quartiles:
    """Of at least one value."""
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    return Quartiles(*quantiles(values, n=4, method="inclusive"))


def rows(framework: str, ranks: int, readings: Sequence[Reading]) -> list[Timing]:
    """Return every contender but memcpy, each held against the memcpy of its own case."""
    copied = {
        (one.operation, one.size): one.size / spread(one.seconds).median
        for one in readings
        if one.contender == MEMCPY
    }
    return [
        _row(framework, ranks, one, copied[one.operation, one.size])
        for one in readings
        if one.contender != MEMCPY
    ]


def _row(framework: str, ranks: int, one: Reading, memcpy: float) -> Timing:
    seconds = spread(one.seconds)
    formula = SENT[one.contender](one.size, ranks) if one.contender in SENT else None
    return Timing(
        framework,
        one.operation,
        one.size,
        one.contender,
        seconds,
        bus_bandwidth(one.operation, one.size, seconds.median, ranks),
        memcpy,
        one.calls,
        one.sent,
        formula,
    )
