"""Figures of several rounds: a median, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of all rounds between the least and the most of any."""

    low: float
    median: float
    high: float
    rounds: int

    def overlaps(self, other: Spread) -> bool:
        """Whether some round of one reads as some round of the other might have. A single round
        has no spread: nothing is told apart by it, nor by what was not read, which is nan."""
        if min(self.rounds, other.rounds) < 2:
            return True
        return not (self.low > other.high or other.low > self.high)


def spread(values: Iterable[float]) -> Spread:
    """Of at least one value."""
    found = sorted(values)
    return Spread(found[0], median(found), found[-1], len(found))


def number(value: float) -> str:
    """For people: whole where it is large; empty where nothing was read."""
    if value != value:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def best(items: Iterable[T], of: Callable[[T], Spread], *, most: bool) -> tuple[T, list[T]] | None:
    """The item of the best median, and the others that cannot be told from it, best first.

    most: whether more is better. None where there are no items of which something was read.
    """
    read = [item for item in items if of(item).median == of(item).median]
    ordered = sorted(read, key=lambda item: of(item).median, reverse=most)
    if not ordered:
        return None
    first, *others = ordered
    return first, [item for item in others if of(item).overlaps(of(first))]
