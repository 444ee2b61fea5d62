"""Layers in a row cut into stages, and a batch cut into microbatches: index arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate


def balanced(costs: Sequence[float], parts: int, cuts: Sequence[int]) -> tuple[int, ...] | None:
    """Where each later part begins, so that the dearest of `parts` runs is as cheap as can be,
    and the others are even. None where there are too few places to cut.

    costs: of each layer, in order. cuts: the indices at which a part may begin.
    """
    sums = [0.0, *accumulate(costs)]
    ends = [*sorted({cut for cut in cuts if 0 < cut < len(costs)}), len(costs)]
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {
        end: (sums[end], sums[end] ** 2, ()) for end in ends
    }
    for _ in range(parts - 1):
        best = {
            end: min(
                _joined(before, start, sums[end] - sums[start])
                for start, before in best.items()
                if start < end
            )
            for end in ends
            if any(start < end for start in best)
        }
    return best[len(costs)][2] if len(costs) in best else None


def _joined(
    before: tuple[float, float, tuple[int, ...]], start: int, cost: float
) -> tuple[float, float, tuple[int, ...]]:
    dearest, squares, starts = before
    return max(dearest, cost), squares + cost**2, (*starts, start)


@dataclass(frozen=True, slots=True)
class Microbatches:
    """A batch in `count` parts of `rows` rows each; what the samples do not fill is padded."""

    samples: int
    count: int
    rows: int

    def real(self, index: int) -> int:
        """How many rows of a part are samples."""
        return max(0, min(self.rows, self.samples - index * self.rows))

    def span(self, index: int) -> tuple[int, int]:
        """The samples of a part: first, and one past the last."""
        first = min(index * self.rows, self.samples)
        return first, first + self.real(index)


def microbatches(samples: int, wanted: int, allows: Callable[[int], bool]) -> Microbatches:
    """As many parts as wanted, but no more than there are samples, nearest to what the schedule
    allows. samples: at least 1."""
    most = min(wanted, samples)
    fewer = (count for count in range(most, 0, -1) if allows(count))
    count = next(fewer, None) or next(n for n in range(most, 10**6) if allows(n))
    return Microbatches(samples, count, -(-samples // count))
