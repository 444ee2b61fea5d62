"""A worker that is slow on purpose, to see whom it holds back."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Self

from dream._errors import ConfigurationError

_HOW = "Give --slow RANK:FACTOR, as in --slow 1:4."


@dataclass(frozen=True, slots=True)
class Slow:
    """rank: the one that is slow; factor: how many times as long each of its steps takes, for
    after each it sleeps in proportion to what it took."""

    rank: int
    factor: float

    @classmethod
    def of(cls, text: str) -> Self:
        """As the command line has it."""
        rank, _, factor = text.partition(":")
        try:
            found = cls(int(rank), float(factor))
        except ValueError:
            raise ConfigurationError(
                f"This names no slow worker. Received: --slow {text}. {_HOW}"
            ) from None
        if found.rank < 0 or not (found.factor > 1 and isfinite(found.factor)):
            raise ConfigurationError(
                "A slow worker is a rank from 0 up, and its factor more than 1. Received: "
                f"--slow {text}. {_HOW}"
            )
        return found

    def __str__(self) -> str:
        return f"rank {self.rank} slowed {self.factor:g}x"
