"""Shares as tf.data pipelines: the order is Keras's own, samples are gathered a share at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from dream.adapters.keras import private
from dream.adapters.keras.data import sources
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import BATCH, SHARE
from dream.adapters.tensorflow.engine import of_any_length
from dream.data.partition import Division


def of_arrays(source: Arrays, ranks: Sequence[int], division: Division) -> tf.data.Dataset:
    """Return the shares of `ranks` in turn, global batch after global batch. One part has no share
    to speak of: its elements are the bare batches."""
    inputs = tree.lists_to_tuples(private.sliceable(source.inputs, "tensorflow"))
    data = tf.data.Dataset.from_tensors(inputs).repeat()

    def gather(at: tf.Tensor, share: tf.Tensor, whole: Any) -> Any:
        if division.parts > 1:
            at = of_any_length(at)
        batch = tree.map_structure(
            lambda x: tf.gather(x, at, axis=0) if tf.is_tensor(x) else x, whole
        )
        return batch if division.parts == 1 else {BATCH: batch, SHARE: share}

    places = _dealt(_places(source), ranks, division)
    elements = tf.data.Dataset.zip((places, data)).map(
        lambda place, whole: gather(place[0], place[1], whole), num_parallel_calls=tf.data.AUTOTUNE
    )
    return _plain(elements).prefetch(tf.data.AUTOTUNE)


def _places(source: Arrays) -> tf.data.Dataset:
    """Return the places in the arrays of every global batch of a pass, in Keras's own order or in
    the seed's, without those that the pass leaves out."""
    if source.in_own_order:
        return _without_left_out(source.places.get_tf_dataset(), source)

    def draw(_: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(source.order, [], tf.int64), [source.samples])

    size = source.batch_size
    full, rest = divmod(source.samples, size)

    def cut(order: tf.Tensor) -> tf.data.Dataset:
        whole = tf.reshape(order[: full * size], [full, size])
        batches = tf.data.Dataset.from_tensor_slices(whole)
        last = tf.data.Dataset.from_tensors(order[full * size :])
        return batches.concatenate(last) if rest else batches

    return _without_left_out(tf.data.Dataset.range(1).map(draw).flat_map(cut), source)


def _without_left_out(batches: tf.data.Dataset, source: Arrays | Batches) -> tf.data.Dataset:
    """Leave out the first batches of a pass that goes on, as many as are said when it begins. What
    they are drawn by stays outermost, for a dataset in another's function is made anew with it."""

    def ask(_: tf.Tensor) -> tf.Tensor:
        left_out = tf.numpy_function(lambda: np.int64(source.passes.left_out), [], tf.int64)
        return tf.ensure_shape(left_out, [])

    asked = tf.data.Dataset.range(1).map(ask)
    left_out = asked.flat_map(lambda number: tf.data.Dataset.from_tensors(number).repeat())
    numbered = tf.data.Dataset.zip((batches.enumerate(), left_out))
    kept = numbered.filter(lambda batch, number: batch[0] >= number)
    return kept.map(lambda batch, _: batch[1])


def _dealt(batches: tf.data.Dataset, ranks: Sequence[int], division: Division) -> tf.data.Dataset:
    """Return (places, share) of each rank in turn, batch after batch. Where a rank has no sample,
    the first one stands in and weighs nothing."""

    def deal(places: tf.Tensor) -> tf.data.Dataset:
        total = tf.size(places, tf.int64)
        of_ranks = tf.data.Dataset.from_tensor_slices(tf.constant(list(ranks), tf.int64))
        return of_ranks.map(lambda rank: _part(places, rank, total, division))

    if len(ranks) > 1:
        return batches.flat_map(deal)
    rank = tf.constant(ranks[0], tf.int64)
    return batches.map(lambda places: _part(places, rank, tf.size(places, tf.int64), division))


def _part(
    places: tf.Tensor, rank: tf.Tensor, total: tf.Tensor, division: Division
) -> tuple[tf.Tensor, tf.Tensor]:
    if division.parts == 1:
        return places, tf.zeros([3])
    first, stop, step = bounds(division, total, rank)
    count = (stop - first + step - 1) // step
    share = tf.stack([tf.cast(count, tf.float32), tf.cast(total, tf.float32), 0.0])
    first, stop = tf.where(count > 0, first, 0), tf.where(count > 0, stop, 1)
    return places[first:stop:step], share


def bounds(division: Division, total: tf.Tensor, part: tf.Tensor) -> tuple[Any, Any, Any]:
    """Return the first, the stop and the step of a part's places in a global batch, in a graph.
    total, part: whole numbers of one type."""
    if division.weights is None:
        return part, total, division.parts
    edges = tf.constant(division.edges, total.dtype)
    first, stop = (total * tf.gather(edges, part + more) // edges[-1] for more in (0, 1))
    return first, stop, 1


def _concatenated(datasets: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    first, *others = datasets
    for other in others:
        first = first.concatenate(other)
    return first


def whole_batches(source: Batches) -> tf.data.Dataset:
    """Return the global batches of a source, without those that a pass leaves out."""
    batches = source.adapter.get_tf_dataset()
    return _without_left_out(batches, source) if source.fixed else batches


Digest = Callable[[Any], tf.Tensor]
"""Of a whole batch, shape (): a number below 2**23, or 0 where nobody compares."""


def of_batches(
    source: Batches, ranks: Sequence[int], division: Division, digest_of: Digest
) -> tf.data.Dataset:
    """Return the shares of `ranks` in turn of global batches that a source yields, each with the
    digest of its batch. A generator is read as far ahead as Keras reads it, and no further: what it
    draws from may be drawn from elsewhere."""
    batches = whole_batches(source)
    ahead = None if private.is_generator(source.adapter) else tf.data.AUTOTUNE

    def cut(*batch: Any) -> list[dict[str, Any]]:
        whole = batch[0] if len(batch) == 1 else batch
        number = digest_of(whole)
        return [_cut(whole, rank, division, number) for rank in ranks]

    def in_turn(*batch: Any) -> tf.data.Dataset:
        return _concatenated([tf.data.Dataset.from_tensors(share) for share in cut(*batch)])

    shares = (
        batches.map(lambda *batch: cut(*batch)[0], num_parallel_calls=ahead)
        if len(ranks) == 1
        else batches.flat_map(in_turn)
    )
    return _plain(shares) if ahead is None else _plain(shares).prefetch(ahead)


def _cut(whole: Any, rank: int, division: Division, number: tf.Tensor) -> dict[str, Any]:
    total = tf.shape(tf.nest.flatten(whole)[0], out_type=tf.int32)[0]
    first, stop, step = bounds(division, total, tf.constant(rank))
    count = tf.maximum(0, (stop - first + step - 1) // step)
    # a part without samples is shown one that weighs nothing
    first = tf.minimum(first, total - 1)
    stop = tf.maximum(stop, first + 1)
    batch = tf.nest.map_structure(lambda x: x[first:stop:step], whole)
    share = tf.stack([tf.cast(count, tf.float32), tf.cast(total, tf.float32), number])
    return {BATCH: batch, SHARE: share}


def no_digest(_: Any) -> tf.Tensor:
    return tf.constant(0.0)


def common_digest(whole: Any) -> tf.Tensor:
    """Return the digest that another framework finds, too."""

    def run(*arrays: Any) -> Any:
        return np.float32(sources.digest_of(arrays))

    return tf.ensure_shape(tf.numpy_function(run, tf.nest.flatten(whole), tf.float32), [])


def own_digest(whole: Any) -> tf.Tensor:
    """Return a whole number below 2**23, not 0, that batches with other content hardly share."""
    texts = [tf.io.serialize_tensor(x) for x in tf.nest.flatten(whole)]
    number = tf.strings.to_hash_bucket_fast(tf.strings.join(texts), sources.DIGESTS - 1)
    return tf.cast(number, tf.float32) + 1.0


def _plain(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Leave out the graph rewriting that costs more than it brings here, as Keras has it."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
