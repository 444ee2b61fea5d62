"""Which samples are whose: index arithmetic, no framework.

The order of an epoch depends on (seed, epoch) alone, never on the number of replicas. A global
batch is a run of that order; a rank's share of it is every world_size-th index, starting at its
rank. So every sample is used once an epoch and shares differ by at most one sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    """

    count: int
    total: int
    parts: int
    micro: int = 0
    micros: int = 1

    @property
    def last(self) -> bool:
        """Whether the gradient is complete after this one."""
        return self.micro == self.micros - 1

    @property
    def weight(self) -> float:
        """What this rank's mean loss is multiplied by, so that the mean over `parts` replicas is
        the mean over the global batch: count * parts / total. 1.0 on an even batch."""
        return self.count * self.parts / self.total if self.total else 0.0


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


def share_of(total: int, rank: int, parts: int) -> Share:
    """The share of `rank` in a global batch of `total` samples dealt round-robin."""
    return Share(len(range(rank, total, parts)), total, parts)


def micro_shares(share: Share, most: int) -> list[Share]:
    """A share in at most `most` runs, whose sizes differ by one sample at most; as many as on any
    rank, and none empty on all of them."""
    micros = max(1, min(most, -(-share.total // share.parts)))
    small, larger = divmod(share.count, micros)
    return [
        Share(small + (micro < larger), share.total, share.parts, micro, micros)
        for micro in range(micros)
    ]


def deal(batch: NDArray[np.int64], rank: int, parts: int) -> NDArray[np.int64]:
    """This rank's samples of one global batch: every parts-th, starting at `rank`."""
    return batch[rank::parts]


def check_batch_size(batch_size: int, parts: int) -> None:
    """A global batch must have a sample for every replica (a short last one need not)."""
    if batch_size < parts:
        raise ConfigurationError(
            "The batch size is the global one and must give every replica a sample. Received: "
            f"batch_size={batch_size}, replicas={parts}. Use batch_size={parts} or more, or fewer "
            "replicas."
        )


def rows_of_all(tensors: tuple[Any, ...]) -> int:
    """Count the samples of a batch, which each of its tensors has a row of."""
    rows = {len(x) if getattr(x, "shape", (0,)) else 0 for x in tensors}
    if len(rows) != 1 or 0 in rows:
        raise ConfigurationError(
            "A batch is shared by rows, so its tensors have as many. Received: "
            f"share() of tensors of {sorted(rows)} rows. Give tensors of one batch, whole."
        )
    return rows.pop()


def split(batch: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """A batch is the model's inputs and then the target."""
    if len(batch) < 2:
        raise ConfigurationError(
            f"A batch is the model's inputs and then the target. Received: {len(batch)} parts. "
            "Call step(x, y), or step(*batch)."
        )
    return batch[:-1], batch[-1]
