"""What came of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dream.compare.record import RankRecord

if TYPE_CHECKING:
    from dream.compare.record import Parameters


@dataclass(frozen=True, slots=True)
class Finished:
    """Every rank left its record. records, parameters: in rank order; start_up: seconds from the
    command to the end of the first step on the slowest rank."""

    records: tuple[RankRecord, ...]
    parameters: tuple[Parameters, ...]
    start_up: float

    @property
    def first(self) -> RankRecord:
        return self.records[0]

    @property
    def peak_bytes(self) -> int:
        return max(record.peak_bytes for record in self.records)


@dataclass(frozen=True, slots=True)
class Broken:
    """The job crashed, or took longer than it may."""

    reason: str
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something is not installed. install: what to run."""

    reason: str
    install: str


Outcome = Finished | Broken | Skipped
