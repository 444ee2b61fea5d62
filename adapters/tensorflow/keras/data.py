"""Shares as tf.data pipelines: orders from dream, samples gathered a share at a time."""

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
from dream.data.partition import share_of


def of_arrays(source: Arrays, ranks: Sequence[int], parts: int) -> tf.data.Dataset:
    """Return the shares of `ranks` in turn, global batch after global batch. One part has no share
    to speak of: its elements are the bare batches."""
    places = _orders(source).flat_map(
        lambda order, left_out: _places(order, source, ranks, parts).skip(left_out * len(ranks))
    )
    inputs = tree.lists_to_tuples(private.sliceable(source.inputs, "tensorflow"))
    data = tf.data.Dataset.from_tensors(inputs).repeat()

    def gather(at: tf.Tensor, share: tf.Tensor, whole: Any) -> Any:
        if parts > 1:
            at = _of_any_length(at)
        batch = tree.map_structure(
            lambda x: tf.gather(x, at, axis=0) if tf.is_tensor(x) else x, whole
        )
        return batch if parts == 1 else {BATCH: batch, SHARE: share}

    elements = tf.data.Dataset.zip((places, data)).map(
        lambda place, whole: gather(place[0], place[1], whole), num_parallel_calls=tf.data.AUTOTUNE
    )
    return _plain(elements).prefetch(tf.data.AUTOTUNE)


def _of_any_length(places: tf.Tensor) -> tf.Tensor:
    """Return the same of a length that the graph does not know: parts with and without short
    batches then trace the same step, and Keras counts their batches alike."""
    return tf.compat.v1.placeholder_with_default(places, [None])


def _orders(source: Arrays) -> tf.data.Dataset:
    """Return one element, drawn when the pass begins: its order, and the batches it leaves out."""

    def draw(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        order, left_out = tf.numpy_function(source.begin, [], [tf.int64, tf.int64])
        return tf.ensure_shape(order, [source.samples]), tf.ensure_shape(left_out, [])

    return tf.data.Dataset.range(1).map(draw)


def _places(order: tf.Tensor, source: Arrays, ranks: Sequence[int], parts: int) -> tf.data.Dataset:
    """Return (places in the arrays, share) of every element of a pass."""
    size = source.batch_size
    full, rest = divmod(source.samples, size)
    result = _rows(tf.reshape(order[: full * size], [full, size]), ranks, parts)
    return result.concatenate(_rows(order[None, full * size :], ranks, parts)) if rest else result


def _rows(rows: tf.Tensor, ranks: Sequence[int], parts: int) -> tf.data.Dataset:
    """Return the elements of global batches of one size, shape (batches, samples)."""
    size = rows.shape[1]
    if size % parts == 0 and len(ranks) > 1:
        shares = tf.transpose(tf.reshape(rows, [-1, size // parts, parts]), [0, 2, 1])
        return _with_share(tf.reshape(shares, [-1, size // parts]), 0, size, parts)
    if len(ranks) == 1:
        return _with_share(_columns(rows, ranks[0], parts), ranks[0], size, parts)
    return tf.data.Dataset.from_tensor_slices(rows).flat_map(
        lambda row: _concatenated(
            [_with_share(_columns(row[None], rank, parts), rank, size, parts) for rank in ranks]
        )
    )


def _columns(rows: tf.Tensor, rank: int, parts: int) -> tf.Tensor:
    """Return `rank`'s samples; where it has none, the first one stands in and weighs nothing."""
    return rows[:, rank::parts] if rank < rows.shape[1] else rows[:, :1]


def _with_share(places: tf.Tensor, rank: int, total: int, parts: int) -> tf.data.Dataset:
    count = share_of(total, rank, parts).count
    share = tf.constant([count, total, 0.0], tf.float32)
    rows = tf.data.Dataset.from_tensor_slices(places)
    return tf.data.Dataset.zip((rows, tf.data.Dataset.from_tensors(share).repeat()))


def _concatenated(datasets: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    first, *others = datasets
    for other in others:
        first = first.concatenate(other)
    return first


def whole_batches(source: Batches) -> tf.data.Dataset:
    """Return the global batches of a source, without those that a pass leaves out."""
    batches = source.adapter.get_tf_dataset()
    if not source.fixed:
        return batches

    def of_pass(_: tf.Tensor) -> tf.data.Dataset:
        left_out = tf.numpy_function(lambda: np.int64(source.passes.left_out), [], tf.int64)
        return batches.skip(tf.ensure_shape(left_out, []))

    return tf.data.Dataset.range(1).flat_map(of_pass)


Digest = Callable[[Any], tf.Tensor]
"""Of a whole batch, shape (): a number below 2**23, or 0 where nobody compares."""


def of_batches(
    batches: tf.data.Dataset, ranks: Sequence[int], parts: int, digest_of: Digest
) -> tf.data.Dataset:
    """Return the shares of `ranks` in turn of global batches that a dataset yields, each with the
    digest of its batch."""

    def cut(*batch: Any) -> list[dict[str, Any]]:
        whole = batch[0] if len(batch) == 1 else batch
        number = digest_of(whole)
        return [_cut(whole, rank, parts, number) for rank in ranks]

    def in_turn(*batch: Any) -> tf.data.Dataset:
        return _concatenated([tf.data.Dataset.from_tensors(share) for share in cut(*batch)])

    shares = (
        batches.map(lambda *batch: cut(*batch)[0], num_parallel_calls=tf.data.AUTOTUNE)
        if len(ranks) == 1
        else batches.flat_map(in_turn)
    )
    return _plain(shares).prefetch(tf.data.AUTOTUNE)


def _cut(whole: Any, rank: int, parts: int, number: tf.Tensor) -> dict[str, Any]:
    total = tf.shape(tf.nest.flatten(whole)[0], out_type=tf.int32)[0]
    count = tf.maximum(0, (total - rank + parts - 1) // parts)
    first = tf.minimum(rank, total - 1)  # a part without samples is shown one that weighs nothing
    batch = tf.nest.map_structure(lambda x: x[first::parts], whole)
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
