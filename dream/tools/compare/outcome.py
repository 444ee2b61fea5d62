"""What came of a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from dream._errors import ConfigurationError, Unsupported, said
from dream.parameter_server.staleness import Staleness
from dream.tools.compare.record import RankRecord
from dream.tools.compare.spread import Spread, spread

if TYPE_CHECKING:
    from dream.tools.compare.record import Parameters
    from dream.tools.verify.runs import Ran


@dataclass(frozen=True, slots=True)
class Finished:
    """Every rank left its record. records, parameters: in rank order; start_up: seconds from the
    command to the end of the first step on the slowest rank; again: the same in later rounds;
    ran: as `dream verify` sees it, of a script."""

    records: tuple[RankRecord, ...]
    parameters: tuple[Parameters, ...]
    start_up: float
    again: tuple[Finished, ...] = ()
    ran: Ran | None = None

    @property
    def first(self) -> RankRecord:
        return self.records[0]

    @property
    def batches(self) -> int:
        """In a step, the most."""
        return 1 if self.ran is None else self.ran.first.batches

    @property
    def rounds(self) -> tuple[Finished, ...]:
        """All of them; each stands for itself."""
        return (replace(self, again=()), *self.again)

    @property
    def peak_bytes(self) -> int:
        """Of the largest rank."""
        return max(record.peak_bytes for record in self.records)

    @property
    def own_bytes(self) -> int:
        """The same beyond what the framework's import takes."""
        return max(record.peak_bytes - record.imported_bytes for record in self.records)

    def over_rounds(self, figure: Callable[[Finished], float]) -> Spread:
        return spread(figure(each) for each in self.rounds)

    @property
    def rate(self) -> float:
        """Samples per second of all replicas together, by the clock of the whole job; nan where
        the warm-up was all there is."""
        started = min(record.window[0] for record in self.records)
        ended = max(record.window[1] for record in self.records)
        done = self.first.window[2]
        return done / (ended - started) if ended > started and done > 0 else float("nan")

    @property
    def speed(self) -> Spread:
        """`rate`."""
        return self.over_rounds(lambda each: each.rate)

    @property
    def staleness(self) -> Staleness | None:
        """Of the first round's updates."""
        told = self.first.staleness
        return None if told is None else Staleness.of_json(told)

    def seconds_to(self, score: float) -> float:
        """From the beginning of the first step until rank 0 first read a test score that is as
        good, at the end of an epoch; infinite where it never did."""
        read = zip(self.first.scores, self.first.epoch_seconds, strict=True)
        return next((seconds for found, seconds in read if found >= score), inf)

    @property
    def memory(self) -> Spread:
        """`own_bytes`."""
        return self.over_rounds(lambda each: each.own_bytes)


@dataclass(frozen=True, slots=True)
class Broken:
    """The job crashed, or took longer than it may."""

    reason: str
    timed_out: bool = False

    @property
    def refused(self) -> str:
        """What the strategy said where it refused the task; empty where it did not."""
        return said(self.reason, Unsupported)

    @property
    def impossible(self) -> str:
        """What dream said where what was asked for cannot be; empty where it can."""
        return said(self.reason, ConfigurationError)


@dataclass(frozen=True, slots=True)
class Skipped:
    """It cannot run here. install: what to run."""

    reason: str
    install: str


Outcome = Finished | Broken | Skipped


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """What came of all rounds of a cell: the first that did not finish, else all of them."""
    finished = [each for each in outcomes if isinstance(each, Finished)]
    for number, each in enumerate(outcomes, 1):
        if isinstance(each, Broken) and number > 1:
            return replace(each, reason=f"In round {number}: {each.reason}")
        if not isinstance(each, Finished):
            return each
    return replace(finished[0], again=tuple(finished[1:]))
