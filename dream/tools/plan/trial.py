"""What a real run tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from dream.tools.plan.asked import Training


@final
@dataclass(frozen=True, slots=True)
class Job:
    """batch: the global one, dealt out in `shares`, which neighbouring ranks work on together.
    steps: that are timed. watched: whether bytes are counted as well."""

    place: str
    training: Training
    batch: int
    shares: int
    steps: int
    watched: bool = True

    def share(self, rank: int, world_size: int) -> tuple[int, int]:
        """A rank's samples: first, and one past the last."""
        index = rank // (world_size // self.shares)
        each, more = divmod(self.batch, self.shares)
        first = index * each + min(index, more)
        return first, first + each + (index < more)


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """Of one rank. peak: bytes of its tensors at most, in a step. given: to each collective in a
    step, bytes; None where they cannot be counted. seconds: of a step, each."""

    peak: int
    given: dict[str, int] | None
    seconds: list[float]
