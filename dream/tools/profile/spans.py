"""What a rank records of its steps: spans of phases, and calls in which ranks meet. Ask for it,
write it down, read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dream.cluster.settings import OBSERVER
from dream.files.whole import write_json

_OBSERVER = "dream.tools.profile.profiler:begin"


class Span(NamedTuple):
    """A part of training, of dream.stall.phases.Phase, on one rank. Seconds by a clock that the
    ranks of a host share."""

    phase: str
    begin: float
    end: float


class CollectiveCall(NamedTuple):
    """A call that every rank makes, in the same order. begin: when this rank came to it."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What a rank is to record, and where.

    folder: where ranks leave what they recorded. steps: after how many, besides those to warm
    up, the script ends.
    """

    folder: Path
    steps: int
    warm_up: int

    @property
    def environ(self) -> dict[str, str]:
        """The environment that has a rank recorded so."""
        return {OBSERVER: f"{_OBSERVER} {json.dumps(asdict(self) | {'folder': str(self.folder)})}"}

    @classmethod
    def of(cls, words: str) -> ProfileRequest:
        said = json.loads(words)
        return cls(Path(said["folder"]), said["steps"], said["warm_up"])


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What one rank has recorded.

    bounds: when each step that counts ended, the first of them that of the last one to warm up.
    own_seconds: what recording itself took of a step, by estimate.
    """

    rank: int
    framework: str
    strategy: str
    reduction: str
    bounds: tuple[float, ...]
    spans: tuple[Span, ...]
    calls: tuple[CollectiveCall, ...]
    own_seconds: float

    @property
    def steps(self) -> int:
        return max(0, len(self.bounds) - 1)

    @property
    def seconds(self) -> float:
        """Of a step, the mean."""
        return (self.bounds[-1] - self.bounds[0]) / self.steps if self.steps else 0.0

    def write(self, folder: Path) -> None:
        write_json(folder / f"{self.rank}.json", asdict(self))

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> RankProfile:
        lists = {
            "bounds": tuple(said["bounds"]),
            "spans": tuple(Span(*each) for each in said["spans"]),
            "calls": tuple(CollectiveCall(*each) for each in said["calls"]),
        }
        return cls(**{**said, **lists})


def read(folder: Path) -> list[RankProfile]:
    """Read what ranks left, in their order."""
    found = [RankProfile.of(json.loads(file.read_text())) for file in folder.glob("*.json")]
    return sorted(found, key=lambda one: one.rank)
