"""Batches of the explicit form: every rank reads the global ones and lays out its part.

A loader gives each rank its share, as everywhere in dream; the step finds the global batch again,
since devices get their parts of it by the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream.adapters.tensorflow.dealing import Dealt, share_cut
from dream.collectives import Communicator


@final
class Shares:
    """What this process's loaders dealt last.

    takers: those that a batch is dealt to, of all that read it; all by default.
    """

    def __init__(self, communicator: Communicator, takers: Communicator | None = None) -> None:
        self._communicator = communicator
        self._takers = takers or communicator
        self._dealt: tuple[Any, Any] | None = None

    def deal(self, dataset: Any) -> Dealt:
        """A dataset of global batches, of which a rank is given every world_size-th sample."""
        cut = share_cut(self._takers.rank, self._takers.world_size)

        def remembered(batch: Any) -> Any:
            share = cut(batch)
            self._dealt = share, batch
            return share

        return Dealt(dataset, remembered, self._communicator)

    def whole(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """The global batch of which this is a rank's share."""
        if self._takers.world_size == 1:
            return batch
        if self._dealt is not None and _same(self._dealt[0], batch):
            found: tuple[Any, ...] = self._dealt[1]
            return found
        return tuple(
            tf.nest.map_structure(lambda x: self._takers.all_gather(np.asarray(x)), list(batch))
        )

    def batches(self, data: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Global batches of data to evaluate."""
        source = data.global_batches() if isinstance(data, Dealt) else data
        for batch in source:
            yield tuple(tf.nest.map_structure(tf.convert_to_tensor, batch))


def _same(ours: Any, theirs: Any) -> bool:
    """Whether these are the very tensors."""
    first, second = tf.nest.flatten(ours), tf.nest.flatten(theirs)
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
