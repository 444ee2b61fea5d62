"""What a worker reads: a batch, or a part of one, by its number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, final

import keras
import numpy as np

from dream._errors import Desynchronized, Unsupported
from dream.adapters.keras import private
from dream.adapters.keras.data.sources import Arrays, Batches, digest_of
from dream.parameter_server.deals import Epoch
from dream.parameter_server.messages import Lease
from dream.parameter_server.work import Work


class Feed(ABC):
    """The batches of one pass."""

    epoch: Epoch

    @abstractmethod
    def batch(self, lease: Lease) -> tuple[Any, int]:
        """What was leased, and how many samples it has."""

    def close(self) -> None:
        """The pass has ended."""
        return


@final
class ArrayFeed(Feed):
    """Arrays in the order of the pass. backend: Keras's, which slices them."""

    def __init__(self, source: Arrays, backend: str) -> None:
        self.epoch = Epoch(source.samples, source.batch_size, drop_last=False)
        self._order = source.order()
        self._inputs = private.tree.lists_to_tuples(private.sliceable(source.inputs, backend))
        first, _ = self.batch(Lease((0, 0), 0, 0, 0, 1))
        self.epoch = replace(self.epoch, mark=_mark(first))

    def batch(self, lease: Lease) -> tuple[Any, int]:
        size = self.epoch.batch_size
        places = self._order[lease.index * size : (lease.index + 1) * size]
        mine = places[lease.part :: lease.parts]
        return private.tree.map_structure(lambda a: _taken(a, mine), self._inputs), len(mine)


@final
class WalkFeed(Feed):
    """A source of batches that is read in order on every worker. Batches that others have are
    kept to the end of the pass, since they may be dealt again. ended: called then."""

    def __init__(
        self,
        source: Iterable[Any],
        count: int | None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        if count is None or count < 0:
            raise Unsupported(
                "Servers deal batches by their numbers. Received: data of unknown length. Say it "
                "with dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass arrays."
            )
        self._batches = iter(source)
        self._ended = ended
        self._read: list[Any] = []
        self.epoch = Epoch(count, 1, drop_last=False)
        if count:
            size = _samples(self._at(0))
            self.epoch = Epoch(count * size, size, False, _mark(self._at(0)))

    def batch(self, lease: Lease) -> tuple[Any, int]:
        whole = self._at(lease.index)
        mine = private.tree.map_structure(
            lambda a: None if a is None else a[lease.part :: lease.parts], whole
        )
        return mine, _samples(mine)

    def close(self) -> None:
        self._ended()

    def _at(self, index: int) -> Any:
        while len(self._read) <= index:
            try:
                self._read.append(next(self._batches))
            except StopIteration:
                raise Desynchronized(
                    "The data has fewer batches than it said. Received: batch "
                    f"{index} of {len(self._read)}. Read the same data on every rank."
                ) from None
        return self._read[index]


def feed_of(source: Arrays | Batches) -> Feed:
    """One pass over what `fit` was given."""
    if isinstance(source, Arrays):
        return ArrayFeed(source, keras.backend.backend())
    if source.ordered is not None:
        source.ordered.begin_pass()
    adapter = source.adapter
    adapter.on_epoch_begin()
    torch = keras.backend.backend() == "torch"
    batches = adapter.get_torch_dataloader() if torch else adapter.get_tf_dataset()
    return WalkFeed(batches, adapter.num_batches, adapter.on_epoch_end)


def leased(work: Work, loader: int, number: int, feed: Feed) -> Iterator[tuple[Any, int]]:
    """The batches of a pass that this worker is dealt, each with its samples."""
    current = work.begin((loader, number), feed.epoch, ahead=False)
    try:
        while (lease := current.take() or current.more()) is not None:
            if current.taken:
                current.taken.popleft()
            batch = feed.batch(lease)
            current.handed_out(lease)
            yield batch
    finally:
        current.abandon()
        feed.close()


def _taken(array: Any, places: Any) -> Any:
    if array is None or isinstance(array, np.ndarray):
        return None if array is None else array[places]
    if isinstance(array, private.Sliceable):  # what Keras makes of arrays for torch
        return array.convert_to_torch_compatible(array[places])
    return keras.ops.take(array, places, axis=0)


def _mark(batch: Any) -> int:
    """What tells batches of other content apart."""
    flat = [np.asarray(a) for a in private.tree.flatten(batch) if a is not None]
    return digest_of(a for a in flat if a.dtype.kind in "fiub")


def _samples(batch: Any) -> int:
    first = next(a for a in private.tree.flatten(batch) if a is not None)
    return int(np.shape(first)[0])
