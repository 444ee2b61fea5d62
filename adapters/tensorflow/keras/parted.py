"""`input="sharded"`: each rank reads its own files of a tf.data.Dataset, and the step adds up how
many samples the ranks have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import tensorflow as tf

from dream._errors import ConfigurationError, Desynchronized, Unsupported
from dream.adapters.keras.data.share import BATCH, MORE, SHARE, BatchShare
from dream.adapters.keras.data.sources import Batches
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.data import untuned
from dream.adapters.tensorflow.engine import rows_of
from dream.adapters.tensorflow.tracing import as_it_stands
from dream.collectives import Communicator
from dream.data.partition import check_batch_size

_DIVIDED = frozenset(
    (
        "Batch", "Concatenate", "FixedLengthRecordDatasetV2", "FlatMap", "Filter", "IgnoreErrors",
        "Interleave", "Map", "Options", "ParallelBatch", "ParallelInterleave", "ParallelMap",
        "Prefetch", "Shuffle", "TFRecordDatasetV2", "TensorSlice", "TextLineDatasetV2", "Unbatch",
    )
)  # fmt: skip
"""Parts of a dataset that give the same samples whichever files come before."""


@final
class PartedBatches:
    """Where the ranks stand in their parts. left: how many have a batch after this step's.
    first: where this rank's samples begin in the global batch, in the step that is traced."""

    def __init__(self, communicator: Communicator) -> None:
        self._ranks = communicator
        self._adding = communicator.unchecked()
        self.first: Any = None
        with tf.init_scope():
            self._left = tf.Variable(1.0, trainable=False, name="dream_parts_left")

    @property
    def over(self) -> bool:
        """Whether no rank has a batch left in this pass."""
        return float(self._left) == 0.0

    def begin(self) -> None:
        """A pass begins."""
        self._left.assign(1.0)

    def met(self, count: Any, more: Any) -> BatchShare:
        """Return this rank's share of a step's batch, of which others have as much as they tell."""
        rank, size = self._ranks.rank, self._ranks.world_size
        mine = tf.concat([tf.one_hot(rank, size) * count, more[None]], 0)
        (table,) = self._adding.all_reduce([mine], "sum")
        self._left.assign(table[size])
        return BatchShare(
            count, tf.reduce_sum(table[:size]), tf.constant(0.0), tf.reduce_sum(table[:rank])
        )

    def elements(self, source: Batches) -> Callable[[int], tf.data.Dataset]:
        """Return what gives this rank's batches of a pass, and then ever more that weigh nothing:
        the step says when all have come to their end."""
        whole = source.adapter.get_tf_dataset()
        _check(whole, self._ranks)
        first = next(iter(whole), None)
        if first is None:
            raise ConfigurationError(
                "There is nothing to read. Received: a tf.data.Dataset without a batch. Give it "
                "files with samples."
            )
        size = max(self._ranks.all_gather_object(int(rows_of(first))))
        rank, ranks = self._ranks.rank, self._ranks.world_size
        check_batch_size(size, ranks)
        own = _part(whole, ranks, rank).rebatch(size // ranks + (rank < size % ranks))
        nothing = tf.nest.map_structure(lambda x: x[:1], first)
        ends = tf.data.Dataset.from_tensors((nothing, 0.0)).repeat()
        marked = own.map(as_it_stands(_marked)).concatenate(ends)
        begin = (nothing, tf.constant(0.0))
        shown = untuned(marked.scan(begin, as_it_stands(_after)).skip(1))
        return lambda _: shown.prefetch(tf.data.AUTOTUNE)


def _marked(*batch: Any) -> Any:
    return (batch[0] if len(batch) == 1 else batch), tf.constant(1.0)


def _after(before: Any, now: Any) -> Any:
    """Give a batch once it is known whether another one follows."""
    batch, counts = before
    count = counts * tf.cast(rows_of(batch), tf.float32)
    return now, {BATCH: batch, SHARE: count, MORE: now[1]}


def _check(dataset: tf.data.Dataset, ranks: Communicator) -> None:
    """Refuse what cannot be divided by files such that each sample comes once."""
    parts = private.parts_of(dataset)
    other = sorted({kind for kind, _ in parts} - _DIVIDED)
    specs = tf.nest.flatten(dataset.element_spec)
    if other or not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        raise Unsupported(
            "This dataset cannot be read in parts, by files, such that each sample comes once. "
            "Received: input='sharded', with "
            f"{', '.join(other) or 'elements that are no tensors'}. Make it of file names, a "
            "reader, map, filter, shuffle, batch and prefetch; or remove input=."
        )
    if any(spec.shape.rank is None or spec.shape[:1].is_fully_defined() for spec in specs):
        raise Unsupported(
            "Each rank's last batch is what its files leave. Received: input='sharded' and batches "
            f"of {specs[0].shape}, all of one size. Leave drop_remainder= out of batch()."
        )
    files = [names for _, names in parts if names is not None]
    size = ranks.world_size
    if not files or any(len(names) < size for names in files):
        raise Unsupported(
            "Each rank reads files of its own. Received: input='sharded', "
            f"{min(map(len, files), default='no')} file names and {size} ranks. Give at least as "
            "many files as ranks, or remove input=."
        )
    if len({tuple(map(tuple, each)) for each in ranks.all_gather_object(files)}) > 1:
        raise Desynchronized(
            "The ranks read other files. Received: input='sharded' and file names that differ "
            "between ranks, or their order does. Give the same list on every rank, sorted: dream "
            "deals the files out."
        )


def _part(dataset: tf.data.Dataset, ranks: int, rank: int) -> tf.data.Dataset:
    try:
        return private.files_of_rank(dataset, ranks, rank)
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        raise Unsupported(
            "TensorFlow finds no files in this dataset that it can divide. Received: "
            "input='sharded'. Read them by tf.data.TFRecordDataset, TextLineDataset or "
            "FixedLengthRecordDataset, or remove input=."
        ) from error
