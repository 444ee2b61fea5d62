"""What is told of a training that was asynchronous."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Staleness:
    """Figures of the whole job, the same whichever rank asks.

    histogram: staleness -> updates that had it. An update's staleness is the number of updates
        that others made between its worker's pull and its push.
    lead: the most batches by which the fastest worker was ahead of the slowest.
    repeated: samples that were dealt again since their worker died or left, at most so many of
        which count twice (a worker may die between bringing a gradient to one server and to the
        next).
    lost: how often a worker died or was given up; joined: how often one came back.
    by_worker: rank -> batches that it brought a gradient of.
    """

    histogram: Mapping[int, int]
    by_worker: Mapping[int, int]
    lead: int
    repeated: int
    lost: int
    joined: int

    @property
    def updates(self) -> int:
        return sum(self.histogram.values())

    @property
    def mean(self) -> float:
        total = sum(staleness * count for staleness, count in self.histogram.items())
        return total / self.updates if self.updates else 0.0

    @property
    def max(self) -> int:
        return max(self.histogram, default=0)

    def __str__(self) -> str:
        shown = ", ".join(f"{s}: {count}" for s, count in sorted(self.histogram.items()))
        return (
            f"{self.updates} updates, staleness {self.mean:.2f} on average, {self.max} at most "
            f"({{{shown}}}); batches by worker {dict(self.by_worker)}, largest lead {self.lead}; "
            f"{self.lost} workers lost, {self.joined} came back, {self.repeated} samples repeated"
        )

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def of_json(cls, said: Mapping[str, object]) -> Self:
        """JSON's keys are strings."""
        tables = {name: {int(k): v for k, v in said[name].items()} for name in _TABLES}  # type: ignore[attr-defined]
        return cls(**{**said, **tables})  # type: ignore[arg-type]


_TABLES = ("histogram", "by_worker")
