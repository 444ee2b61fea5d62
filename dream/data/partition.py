"""Which samples are whose: index arithmetic, no framework.

The order of an epoch depends on (seed, epoch) alone, never on the number of replicas. A global
batch is a run of that order; a rank's share of it is every world_size-th index, starting at its
rank, so that shares differ by at most one sample; or a run of its own, where shares are to differ.
Every sample is used once an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, final

from dream._errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Share:
    """How much of one global batch is this rank's.

    count: samples on this rank; total: samples in the global batch; parts: replicas.
    micro, micros: which of how many parts of the share this is, where it is computed in several;
        `count` is then the part's, `total` still the global batch's.
    first, step: its samples are the first-th of the global batch and every step-th after that.
    most: samples of the largest share of that batch; 0 where shares are equal.
    """

    count: int
    total: int
    parts: int
    micro: int = 0
    micros: int = 1
    first: int = 0
    step: int = 1
    most: int = 0

    @property
    def last(self) -> bool:
        """Whether the gradient is complete after this one."""
        return self.micro == self.micros - 1

    @property
    def weight(self) -> float:
        """What this rank's mean loss is multiplied by, so that the mean over `parts` replicas is
        the mean over the global batch: count * parts / total. 1.0 on an even batch."""
        return self.count * self.parts / self.total if self.total else 0.0

    @property
    def largest(self) -> int:
        """Count the samples of the largest share that any rank has of that batch."""
        return self.most or -(-self.total // self.parts)

    @property
    def cut(self) -> slice:
        """Where its samples are in the global batch."""
        return slice(self.first, self.first + self.step * self.count, self.step)


@final
@dataclass(frozen=True, slots=True)
class Division:
    """How global batches are divided among replicas.

    parts: how many. weights: a whole number for each, in whose proportion it has a run of every
        batch; None for equal shares, dealt round-robin.
    """

    parts: int
    weights: tuple[int, ...] | None = None

    @classmethod
    def asked(cls, parts: int, shares: object) -> Division:
        """The one that the option `shares` asks for; to begin with, equal shares."""
        if parts == 1 or not isinstance(shares, (list, tuple)):
            return cls(parts)
        numbers = all(type(each) is int and each > 0 for each in shares)
        if len(shares) != parts or not numbers:
            raise ConfigurationError(
                "shares= takes one whole number of at least 1 per replica; each batch is divided "
                f"in that proportion. Received: shares={list(shares)!r} for {parts} replicas. Pass "
                f"one per replica, as in shares={[3] + [1] * (parts - 1)}."
            )
        return cls(parts, tuple(shares) if len(set(shares)) > 1 else None)

    @classmethod
    def by_speed(cls, speeds: Sequence[float], batch_size: int) -> Division:
        """The one in which parts of such speeds take equal times for a batch of such size; none is
        left without a sample."""
        spare, whole = batch_size - len(speeds), sum(speeds)
        edges = [round(spare * edge / whole) for edge in accumulate(speeds, initial=0.0)]
        counts = tuple(1 + after - before for before, after in pairwise(edges))
        return cls(len(counts), counts)

    @property
    def edges(self) -> tuple[int, ...]:
        """The weights added up, from 0 on: a run is total * edge // last edge to the next one's."""
        return tuple(accumulate(self.weights or (1,) * self.parts, initial=0))

    def rows(self, total: int, part: int) -> range:
        """A part's places in a global batch of `total` samples."""
        if self.weights is None:
            return range(part, total, self.parts)
        edges = self.edges
        return range(total * edges[part] // edges[-1], total * edges[part + 1] // edges[-1])

    def share(self, total: int, part: int) -> Share:
        """A part's share of a global batch of `total` samples."""
        rows = self.rows(total, part)
        most = max(len(self.rows(total, p)) for p in range(self.parts)) if self.weights else 0
        return Share(len(rows), total, self.parts, first=rows.start, step=rows.step, most=most)

    def check_batch_size(self, batch_size: int) -> None:
        """A global batch must have a sample for every replica (a short last one need not)."""
        check_batch_size(batch_size, self.parts)
        empty = [part for part in range(self.parts) if not self.rows(batch_size, part)]
        if empty:
            raise ConfigurationError(
                "batch_size is the global batch size and must give every replica at least one "
                f"sample. Received: batch_size={batch_size}, of which "
                f"shares={list(self.weights or ())} leave none for rank {empty[0]}. Use a larger "
                "batch, or shares that differ less."
            )


class Divided:
    """How global batches are divided: `now` is that of the batch that is drawn next, the same on
    every rank. draw: told of each batch before it is drawn, by what draws it and the size of a
    whole one, and may change `now`; None for nobody."""

    def __init__(self, division: Division) -> None:
        self.now = division
        self.draw: Callable[[object, int], None] | None = None


def epoch_order(samples: int, *, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """The order of one epoch, shape (samples,): identity, or a permutation drawn from
    (seed, epoch) with NumPy's PCG64."""
    import numpy as np

    if not shuffle:
        return np.arange(samples, dtype=np.int64)
    return np.random.default_rng([seed, epoch]).permutation(samples)


def global_batches(
    order: NDArray[np.int64], batch_size: int, *, drop_last: bool = False
) -> Iterator[NDArray[np.int64]]:
    """The order cut into global batches; the last may be short unless `drop_last`."""
    stop = len(order) - len(order) % batch_size if drop_last else len(order)
    for start in range(0, stop, batch_size):
        yield order[start : start + batch_size]


def micro_shares(share: Share, most: int) -> list[Share]:
    """A share in at most `most` runs, whose sizes differ by one sample at most; as many as on any
    rank, and none empty on all of them."""
    micros = max(1, min(most, share.largest))
    small, larger = divmod(share.count, micros)
    counts = [small + (micro < larger) for micro in range(micros)]
    before = accumulate(counts, initial=0)
    return [
        replace(share, count=count, micro=n, micros=micros, first=share.first + share.step * done)
        for n, (count, done) in enumerate(zip(counts, before, strict=False))
    ]


def check_batch_size(batch_size: int, parts: int) -> None:
    """A global batch must have a sample for every replica (a short last one need not)."""
    if batch_size < parts:
        raise ConfigurationError(
            "batch_size is the global batch size and must give every replica at least one sample. "
            f"Received: batch_size={batch_size}, replicas={parts}. Use batch_size={parts} or more, "
            "or fewer replicas."
        )


def rows_of_all(tensors: tuple[Any, ...]) -> int:
    """Count the samples of a batch, which each of its tensors has a row of."""
    rows = {len(x) if getattr(x, "shape", (0,)) else 0 for x in tensors}
    if len(rows) != 1 or 0 in rows:
        raise ConfigurationError(
            "A batch is split by rows, so all its tensors must have the same number of rows. "
            f"Received: share() of tensors of {sorted(rows)} rows. Pass the tensors of one whole "
            "batch."
        )
    return rows.pop()


def split(batch: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """A batch is the model's inputs and then the target."""
    if len(batch) < 2:
        raise ConfigurationError(
            f"A batch must be the model's inputs followed by the target. Received: {len(batch)} "
            "parts. Call step(x, y), or step(*batch)."
        )
    return batch[:-1], batch[-1]
