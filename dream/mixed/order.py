"""Whether ranks of two frameworks hold shares of the same global batches.

Each framework has loaders of its own, and the layouts of its own inputs; but what a loss is taken
against is the same in both. So ranks tell one another sums of the targets they have seen, in
which every place counts otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, final

from dream._errors import Desynchronized
from dream.collectives import Communicator
from dream.mixed.talk import told

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN = 0.6180339887498949
_NEAR = 1e-5
"""Of the sum of absolute values: what another framework's preprocessing may change."""


_Words = dict[int, tuple[Any, ...]]
"""`Targets` as a plain value."""


@final
@dataclass(slots=True)
class Sum:
    """Of one rank's shares. samples: so far; sort: integers or floats, and the shape of one."""

    sort: str = ""
    samples: int = 0
    total: float = 0.0
    absolute: float = 0.0

    def add(self, targets: NDArray[Any]) -> None:
        import numpy as np

        if not len(targets):
            return
        kind = "floats" if targets.dtype.kind == "f" else "integers"
        self.sort = f"{kind} {tuple(targets.shape[1:])}"
        each = targets.reshape(len(targets), -1).astype(np.float64).sum(axis=1)
        weights = 1.0 + np.modf((self.samples + np.arange(len(each))) * _GOLDEN)[0]
        self.samples += len(each)
        self.total += float(weights @ each)
        self.absolute += float(weights @ np.abs(each))

    def differs(self, other: Sum) -> bool:
        """Where both have targets of one sort; classes and one-hot vectors, for instance, cannot
        be compared."""
        if self.samples != other.samples:
            return True
        near = _NEAR * max(self.absolute, other.absolute)
        return self.sort == other.sort and abs(self.total - other.total) > near


@final
@dataclass(slots=True)
class Targets:
    """What a rank has seen of a pass over the data. shares: by the rank whose they are."""

    shares: dict[int, Sum] = field(default_factory=dict)

    def add(self, rank: int, targets: NDArray[Any]) -> None:
        self.shares.setdefault(rank, Sum()).add(targets)

    def add_whole(self, targets: NDArray[Any], parts: int) -> None:
        """Of a global batch, of which every parts-th sample is a rank's."""
        for rank in range(parts):
            self.add(rank, targets[rank::parts])

    @property
    def _words(self) -> _Words:
        return {rank: astuple(share) for rank, share in self.shares.items()}

    @classmethod
    def _of(cls, words: _Words) -> Targets:
        return cls({rank: Sum(*share) for rank, share in words.items()})

    def compare(self, communicator: Communicator, what: str) -> None:
        """Raise `Desynchronized` where another rank saw other targets. Every rank calls it."""
        said = told(communicator, self._words, f"compares {what}")
        everybody = [Targets._of(words) for words in said]
        for share in range(communicator.world_size):
            sums = [(rank, seen.shares.get(share)) for rank, seen in enumerate(everybody)]
            _check(sums, share, what)


def _check(sums: Sequence[tuple[int, Sum | None]], share: int, what: str) -> None:
    known = [(rank, seen) for rank, seen in sums if seen is not None]
    for rank, seen in known[1:]:
        first_rank, first = known[0]
        if seen.differs(first):
            raise Desynchronized(
                f"The ranks read different data. Received: rank {share}'s share of {what} has "
                f"{_tell(first)} on rank {first_rank}, {_tell(seen)} on rank {rank}. Give every "
                "rank the same samples in the same order: strategy.order(samples, epoch) is that "
                "of a shuffled torch loader; tf.data's shuffle has one of its own."
            )


def _tell(seen: Sum) -> str:
    return f"{seen.samples} targets ({seen.sort}) of weighed sum {seen.total:.6g}"
