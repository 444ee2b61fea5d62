"""How a pipeline is divided: layers into stages of even cost, batches into microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from dream._errors import ConfigurationError


def asked_stages(options: Mapping[str, object], parts: int) -> int:
    """How many stages a plan asks for: one for each part of the model axis by default, and two
    where they are interleaved."""
    asked = options["stages"]
    if isinstance(asked, (list, tuple)):
        return len(asked) + 1
    default = parts * (2 if options["schedule"] == "interleaved" else 1)
    return asked if isinstance(asked, int) else default


def asked_microbatches(options: Mapping[str, object], stages: int) -> int:
    asked = options["microbatches"]
    return asked if isinstance(asked, int) else 2 * stages


def check_starts(found: Sequence[int], names: Sequence[str], row: Sequence[str]) -> None:
    """Raise where the layers that stages begin with do not come one after another. found: their
    places in the row of all layers."""
    if found != sorted(set(found)) or 0 in found:
        raise ConfigurationError(
            "Each stage needs a first layer, named in the order in which a batch passes through "
            f"the layers. Received: stages={[*names]} for {', '.join(row)}. Name the first layer "
            "of the second stage, then of the third, and so on."
        )


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


def cuts(samples: int, runs: int, count: int) -> list[list[slice]]:
    """Where a batch is cut into so many runs, each into `count` microbatches, or fewer where there
    are fewer samples; their lengths alike but for one."""
    edges = [run * samples // runs for run in range(runs + 1)]
    found = []
    for first, last in pairwise(edges):
        within = np.linspace(first, last, min(last - first, count) + 1).round().astype(int)
        found.append([slice(int(a), int(b)) for a, b in pairwise(within)])
    return found
