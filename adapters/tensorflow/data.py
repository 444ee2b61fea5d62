"""Global batches dealt out: this rank's share of each, or one share for each local replica."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream._errors import ConfigurationError, Desynchronized, Unsupported
from dream.adapters.keras.data.sources import check_auto_shard
from dream.collectives import Communicator
from dream.data import tracked
from dream.data.partition import Division
from dream.data.position import Position, check_long_enough, check_read_again
from dream.mixed.order import Targets
from dream.mixed.resync import Resyncs

Shard = Callable[[Any], Any]
"""From a global batch this process's share, or one for each of its replicas."""
_REMEMBERED = 64
"""Shares whose batches are known: more than a loop reads ahead."""
_GLANCE = 1024
"""Elements of each tensor that the ranks compare."""


@final
class Totals:
    """How many samples the global batches have whose shares were handed out last."""

    def __init__(self) -> None:
        self._last: deque[tuple[Any, int]] = deque(maxlen=_REMEMBERED)

    def note(self, share: Any, whole: Any) -> None:
        """Note that this is a share of a whole batch."""
        self._last.append((_first(share), len(_first(whole))))

    def of(self, batch: Any) -> int:
        """Return the total of a share; 0 for what nobody has dealt."""
        asked = _first(batch)
        return next((total for first, total in reversed(self._last) if first is asked), 0)


def _first(batch: Any) -> Any:
    return tf.nest.flatten(batch)[0]


@final
class ShardedDataset:
    """A dataset of global batches, iterated as often as one likes, an epoch each time.

    Every rank reads the same global batches and keeps its share. That they are the same is
    looked at with the first batch and at the end of an epoch.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        shard: Shard,
        communicator: Communicator,
        resyncs: Resyncs | None = None,
        totals: Totals | None = None,
    ) -> None:
        """resyncs: where some ranks are of another framework, whose loaders read their share
        only; they settle at the end of a pass."""
        _check_dataset(dataset)
        if communicator.world_size > 1:
            check_auto_shard(dataset)
            dataset = untuned(dataset)
        self._resyncs = resyncs
        self._totals = totals or Totals()
        self._dataset = dataset
        self._shard = shard
        self._communicator = communicator
        self._begun = self._ended = 0
        self._going_on = self.cut = False
        self._position = Position()
        tracked.mark(self, self)

    def __len__(self) -> int:
        return len(self._dataset)

    def state_dict(self) -> dict[str, Any]:
        """Where training on this stands: the same on every rank, for any number of replicas."""
        return self._position.state({})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next pass go on from there: what was handed out is read and left out."""
        self._position = Position.of(state, {})
        self._going_on = True

    state, load = state_dict, load_state_dict

    def global_batches(self) -> Iterator[Any]:
        return iter(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        """Compared with the other ranks' by targets where some are of another framework."""
        seen, resyncs, first = Targets(), self._resyncs, True
        for batch, digest in self._pass():
            if resyncs is not None:
                seen.add_whole(targets_of(batch), self._communicator.world_size)
            if first:
                first = False
                self._compare(digest, seen, "the first batch")
            share = self._shard(batch)
            self._totals.note(share, batch)
            yield share
        self._compare(self._ended, seen, "an epoch's batches")
        if resyncs is not None:
            resyncs.settle()

    def _pass(self) -> Iterator[tuple[Any, int]]:
        """The batches that are to be handed out yet, each with the digest of all up to it."""
        if not tf.executing_eagerly():
            raise Unsupported(
                "A tf.function cannot read what strategy.prepare made of a dataset. Received: a "
                "loop over it inside one. Loop outside, and call the function on each batch."
            )
        start = self._start()
        self._position, digest, read = start, 0, 0
        self.cut = False
        try:
            for batch in self._dataset:
                digest, read = _digest(batch, digest), read + 1
                if read > start.batches:
                    samples = len(tf.nest.flatten(batch)[0])
                    self._position = self._position.after(samples, digest)
                    yield batch, digest
                elif read == start.batches:
                    self._compare_whole(digest, "the batches before")
                    check_read_again(digest, start)
        except GeneratorExit:  # the loop is left, by a zip with a shorter dataset, say
            if read == int(self._dataset.cardinality()):
                self._position = self._next()
            else:
                self.cut = True
            raise
        check_long_enough(read, start)
        self._position, self._ended = self._next(), digest

    def _next(self) -> Position:
        """After a pass. A zip of this with itself has begun two."""
        return Position(self._begun)

    def _start(self) -> Position:
        """Where the pass that begins now starts. A dataset that reshuffles does so with every
        iterator, so those of earlier epochs are made where another process had them."""
        if not self._going_on:
            self._begun += 1
            return Position(self._begun - 1)
        self._going_on = False
        for _ in range(self._begun, self._position.epoch):
            next(iter(self._dataset), None)
        self._begun = self._position.epoch + 1
        return self._position

    def _compare(self, digest: int, seen: Targets, what: str) -> None:
        if self._resyncs is None:
            self._compare_whole(digest, what)
        else:
            seen.compare(self._communicator, what)

    def _compare_whole(self, digest: int, what: str) -> None:
        if self._communicator.world_size == 1:
            return
        pair = self._communicator.all_reduce(np.array([digest, -digest], np.int64), "max")
        if pair[0] != -pair[1]:
            raise Desynchronized(
                f"The ranks read different data. Received: {what}, not alike on all ranks. Give "
                "shuffle() a seed, and read the same files in the same order on every rank; dream "
                "deals the batches out."
            )


@final
class GlobalBatches:
    """Remember the batches that loaders dealt last: a loader gives each rank its share, as
    everywhere, and a step on a mesh finds the global batch again.

    takers: those that a batch is dealt to, of all that read it; all by default.
    """

    def __init__(self, communicator: Communicator, takers: Communicator | None = None) -> None:
        self._communicator = communicator
        self._takers = takers or communicator
        self._dealt: tuple[Any, Any] | None = None

    def deal(self, dataset: Any) -> ShardedDataset:
        """A dataset of global batches, of which a rank is given every world_size-th sample."""
        shard = shard_of_rank(self._takers.rank, Division(self._takers.world_size))

        def remembered(batch: Any) -> Any:
            share = shard(batch)
            self._dealt = share, batch
            return share

        return ShardedDataset(dataset, remembered, self._communicator)

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

    def of(self, data: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Global batches of data to evaluate."""
        source = data.global_batches() if isinstance(data, ShardedDataset) else data
        for batch in source:
            yield tuple(tf.nest.map_structure(tf.convert_to_tensor, batch))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Have a dataset do without the thread that looks for better numbers of threads, ever more
    seldom; a user's own option stays. Where a pass ends as that falls asleep, TensorFlow 2.21 waits
    until it looks again, for as long as the pass has taken: in one pass of six, and with it all
    ranks."""
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def targets_of(batch: Any) -> np.ndarray[Any, Any]:
    """Return the last tensor of a batch, against which its loss is taken."""
    targets: np.ndarray[Any, Any] = tf.nest.flatten(batch)[-1].numpy()
    return targets


def shard_of_rank(rank: int, division: Division) -> Shard:
    """A rank's samples."""

    def cut(x: tf.Tensor) -> tf.Tensor:
        return x[division.share(len(x), rank).cut]

    return lambda batch: tf.nest.map_structure(cut, batch)


def shards_of_replicas(strategy: tf.distribute.Strategy, here: Sequence[int], parts: int) -> Shard:
    """A batch whose tensors hold a share for each replica of `strategy`, on its device. here: which
    of all the parts they are."""

    def place(x: tf.Tensor) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: x[here[context.replica_id_in_sync_group] :: parts]
        )

    return lambda batch: tf.nest.map_structure(place, batch)


def _check_dataset(data: Any) -> None:
    if not isinstance(data, tf.data.Dataset):
        raise Unsupported(
            "prepare takes Keras models, Keras optimizers and tf.data.Dataset of global batches. "
            f"Received: {type(data).__name__}. Make it one with "
            "tf.data.Dataset.from_tensor_slices(...).batch(size); fit takes the rest as it is."
        )
    for spec in tf.nest.flatten(data.element_spec):
        if spec.shape.rank == 0:
            raise ConfigurationError(
                "The dataset yields single numbers, not batches. Received: element "
                f"{data.element_spec}. Call .batch(size) with the global batch size."
            )


def _digest(batch: Any, before: int) -> int:
    """A number made of the batches so far."""
    for x in tf.nest.flatten(batch):
        before = zlib.crc32(repr(tuple(x.shape)).encode(), before)
        before = zlib.crc32(_glance(x), before)
    return before


def _glance(x: Any) -> bytes:
    """Return the first elements of a tensor. Numbers are read where they lie, if they can be:
    operations that fetch them would take a third of a small model's step."""
    with suppress(TypeError, ValueError, BufferError):  # a ragged one, bfloat16, a GPU's
        there = np.asarray(memoryview(x)).reshape(-1)[:_GLANCE]
        if there.dtype != object:
            return there.tobytes()
    start: np.ndarray[Any, Any] = tf.reshape(x, [-1])[:_GLANCE].numpy()
    return repr(start.tolist()).encode() if start.dtype == object else start.tobytes()  # words


def _same(ours: Any, theirs: Any) -> bool:
    """Whether these are the very tensors."""
    first, second = tf.nest.flatten(ours), tf.nest.flatten(theirs)
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
