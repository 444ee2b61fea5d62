"""Times into figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from dream.tools.collectives.cost import SENT, bus_bandwidth

MEMCPY = "memcpy"


@dataclass(frozen=True, slots=True)
class Machine:
    """What speeds depend on. cores: that we may use; load: processes that wanted one before the
    first rank started, the mean over a minute."""

    cores: int
    load: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What the ranks read of one contender.

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
class Spread:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line.

    contender: a transport or an algorithm. size: bytes, as in cost. bus_bandwidth, memcpy: bytes
    a second; memcpy: of every rank while all copy as many bytes. sent: by each rank in one call
    of an algorithm, as counted; formula: as the textbook has it.
    """

    framework: str
    operation: str
    size: int
    contender: str
    seconds: Spread
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


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*quantiles(values, n=4, method="inclusive"))


def rows(framework: str, ranks: int, readings: Sequence[Reading]) -> list[Row]:
    """Every contender but memcpy, each held against the memcpy of its own case."""
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


def _row(framework: str, ranks: int, one: Reading, memcpy: float) -> Row:
    seconds = spread(one.seconds)
    formula = SENT[one.contender](one.size, ranks) if one.contender in SENT else None
    return Row(
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
