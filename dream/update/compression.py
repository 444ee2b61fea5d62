"""Read `compression=` and `op="adasum"`: how a gradient's bytes are made fewer, and gradients one.

Adasum (Maleki et al. 2020), as Horovod's core reckons it: of two gradients a and b of one parameter
(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b. Of more, ranks meet in pairs at distance 1, 2, 4 and so
on, each with what its half has found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from dream._errors import ConfigurationError

Kind = Literal["float16", "bfloat16", "powersgd", "topk"]
KINDS: tuple[Kind, ...] = ("float16", "bfloat16", "powersgd", "topk")
_AMOUNTS: dict[Kind, float] = {"powersgd": 1.0, "topk": 0.01}
_HOW = (
    "Write 'float16', 'bfloat16', 'powersgd' or 'powersgd:RANK' (1 by default), 'topk' or "
    "'topk:FRACTION' (0.01 by default)."
)


@dataclass(frozen=True, slots=True)
class Compression:
    """How gradients are compressed on their way.

    kind: by rounding, by matrices of low rank, by the largest elements alone.

    amount: powersgd: the rank; topk: the fraction of elements that travel.

    """

    kind: Kind
    amount: float = 0.0

    @property
    def remembers(self) -> bool:
        """Whether what is not sent is added to the next gradient."""
        return self.kind in ("powersgd", "topk")

    def elements(self, size: int) -> int:
        """topk: how many of a gradient's elements travel."""
        return max(1, round(self.amount * size))

    @classmethod
    def parse(cls, text: str) -> Self:
        """`KIND` or `KIND:AMOUNT`."""
        name, colon, amount = text.partition(":")
        if name not in KINDS or (colon and name not in _AMOUNTS):
            raise ConfigurationError(f"Unknown compression. Received: {text!r}. {_HOW}")
        try:
            value = float(amount) if colon else _AMOUNTS.get(name, 0.0)
        except ValueError:
            value = -1.0
        if name == "topk" and not 0.0 < value <= 1.0:
            raise ConfigurationError(
                f"The fraction of elements must be above 0 and at most 1. Received: {text!r}. "
                f"{_HOW}"
            )
        if name == "powersgd" and not (value >= 1.0 and value.is_integer()):
            raise ConfigurationError(
                f"The rank (of the approximation) must be at least 1. Received: {text!r}. {_HOW}"
            )
        return cls(name, value)


TINY = 1e-8
"""A gradient whose squared norm is below that is added as it is, as in the core."""


def check_ranks(ranks: int) -> None:
    """Refuse a number of ranks that do not meet in pairs."""
    if ranks & (ranks - 1):
        raise ConfigurationError(
            "Adasum combines ranks in pairs, so their number must be a power of two. Received: "
            f"op='adasum' on {ranks} ranks. Start 2, 4, 8 or another power of two, or remove op."
        )
