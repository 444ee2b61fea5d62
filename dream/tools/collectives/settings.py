"""What is measured, the same for every framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from dream._errors import ConfigurationError, unknown
from dream.tools.collectives.cost import ELEMENT, FACTORS, SENT


@dataclass(frozen=True, slots=True)
class Settings:
    """sizes: in bytes; algorithms: of all_reduce, beside the transports' own; rounds: how often
    each is read; timeout: seconds that one framework's job may take."""

    n: int
    operations: Sequence[str]
    sizes: Sequence[int]
    algorithms: Sequence[str]
    rounds: int
    timeout: float

    def __post_init__(self) -> None:
        if self.n < 2:
            raise ConfigurationError(
                f"A collective needs two ranks. Received: n={self.n}. Give -n 2 or more."
            )
        for what, value in (("rounds", self.rounds), ("timeout", self.timeout)):
            if value < 1:
                raise ConfigurationError(
                    f"Too little to measure. Received: {what}={value}. Give at least 1."
                )
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
