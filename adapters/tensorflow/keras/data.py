"""Shares as tf.data pipelines: the order is Keras's own, samples are gathered a share at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import tensorflow as tf
from keras import tree

from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.data import sources
from dream.adapters.keras.data.share import BATCH, EVEN, PARTS, PLACES, SHARE, WHOLE
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.tensorflow.data import untuned
from dream.adapters.tensorflow.engine import of_any_length
from dream.adapters.tensorflow.tracing import as_it_stands
from dream.data.partition import Division

_SMALL = 1 << 22
"""Bytes of a batch."""


@final
class Dealt(tf.distribute.DistributedDataset):  # type: ignore[misc]  # TensorFlow is untyped
    """A source's elements, pass after pass. Keras takes it as one that is placed already.

    A pass that goes on leaves its first batches out, which is known once it begins: it reads a
    dataset of its own, so that the passes before and after it pay nothing.
    """

    def __init__(
        self,
        source: Arrays | Batches,
        elements: Callable[[int], tf.data.Dataset],
        place: Callable[[tf.data.Dataset], Any] = lambda elements: elements,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        """elements: gives the dataset without so many first batches. place: what is iterated over
        in its stead. begins: told of each pass."""
        self._passes = source.passes
        self._goes_on = source.fixed
        self._make: Callable[[int], Any] = lambda left_out: place(elements(left_out))
        self._whole, self._begins = self._make(0), begins

    def __iter__(self) -> Iterator[Any]:
        self._begins()
        left_out = self._passes.left_out if self._goes_on else 0
        found: Iterator[Any] = iter(self._make(left_out) if left_out else self._whole)
        return found

    @property
    def element_spec(self) -> Any:
        return self._whole.element_spec


def whole_arrays(source: Arrays) -> Callable[[int], tf.data.Dataset]:
    """Return what gives the global batches of arrays, as one part takes them: Keras's own, save
    where the seed's order is asked for."""
    if source.in_own_order:
        return partial(_left_out, source.whole.get_tf_dataset())
    return _at_places(source, gathered)


def of_arrays(
    source: Arrays, ranks: Sequence[int], division: Division, *, even: bool = False
) -> Callable[[int], tf.data.Dataset]:
    """Return what gives the shares of `ranks`, a global batch an element: {PARTS: a share each}, or
    the share where it is of one rank. even: whether that may be without numbers, where batches are
    all as long and parts have as much of each. Its length stays unknown to the step's graph, which
    tells a number of rows from a plain number by that (`GraphRows`)."""

    def deal(at: tf.Tensor, whole: Any) -> Any:
        if even and _divides_evenly([at], division):
            runs = [of_any_length(at[rank :: division.parts]) for rank in ranks]
            return _of_ranks([{EVEN: gathered(run, whole)} for run in runs])
        total = tf.size(at)
        return _of_ranks([_part(at, whole, rank, total, division) for rank in ranks])

    return _at_places(source, deal)


def undivided_arrays(source: Arrays) -> Callable[[int], tf.data.Dataset]:
    """Return what gives the places of global batches in arrays, which each step takes its run
    of."""
    return _at_places(source, lambda at, whole: {WHOLE: whole, PLACES: at, SHARE: tf.constant(0.0)})


def _at_places(source: Arrays, take: Callable[[Any, Any], Any]) -> Callable[[int], tf.data.Dataset]:
    """Return what gives `take(places, arrays)` of each global batch."""
    places, whole = _places(source), tf.data.Dataset.from_tensors(_inputs(source)).repeat()
    specs = tf.nest.flatten(whole.element_spec)
    row = sum(spec.dtype.size * math.prod(spec.shape[1:]) for spec in specs)
    large = row * source.batch_size > _SMALL
    calls = tf.data.AUTOTUNE if large else None  # a thread more costs more than it copies
    return lambda left_out: _plain(
        tf.data.Dataset.zip((_left_out(places, left_out), whole)).map(
            as_it_stands(take), num_parallel_calls=calls
        )
    ).prefetch(tf.data.AUTOTUNE)


def by_turns(element: Any) -> tf.data.Dataset:
    """Return the elements in one that has one for each part."""
    first, *others = [tf.data.Dataset.from_tensors(each) for each in element[PARTS]]
    for other in others:
        first = first.concatenate(other)
    return first


def _of_ranks(shares: Sequence[Any]) -> Any:
    return {PARTS: tuple(shares)} if len(shares) > 1 else shares[0]


def _inputs(source: Arrays) -> Any:
    inputs = tree.lists_to_tuples(private_data.sliceable(source.inputs, "tensorflow"))
    sources.check_dense(inputs)
    return inputs


def _places(source: Arrays) -> tf.data.Dataset:
    """Return the places in the arrays of every global batch of a pass, in Keras's own order or in
    the seed's."""
    if source.in_own_order:
        return source.places.get_tf_dataset()

    @as_it_stands
    def draw(_: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(source.order, [], tf.int64), [source.samples])

    size = source.batch_size
    full, rest = divmod(source.samples, size)

    @as_it_stands
    def cut(order: tf.Tensor) -> tf.data.Dataset:
        whole = tf.reshape(order[: full * size], [full, size])
        batches = tf.data.Dataset.from_tensor_slices(whole)
        last = tf.data.Dataset.from_tensors(order[full * size :])
        return batches.concatenate(last) if rest else batches

    return tf.data.Dataset.range(1).map(draw).flat_map(cut)


def _left_out(batches: tf.data.Dataset, number: int) -> tf.data.Dataset:
    """Leave out so many first batches. They are drawn all the same, and what draws stays as it
    is."""
    return batches.skip(number) if number else batches


def _part(
    at: tf.Tensor, whole: Any, rank: int, total: tf.Tensor, division: Division
) -> dict[str, Any]:
    cut, share = _share(rank, division, total, tf.constant(0.0))  # without a digest
    return {BATCH: gathered(of_any_length(at[cut]), whole), SHARE: share}


def _divides_evenly(leaves: Sequence[Any], division: Division) -> bool:
    """Whether a batch's tensors are of one known length, which each part has as much of."""
    length = leaves[0].shape[0] if leaves[0].shape.rank else None
    if not length or not _alike(leaves) or division.weights is not None:
        return False
    return bool(length % division.parts == 0)


def _share(
    rank: int, division: Division, total: tf.Tensor, digest: tf.Tensor
) -> tuple[slice, tf.Tensor]:
    """Return where a rank's samples are in a global batch, and the numbers of its share. One
    without samples is shown one that weighs nothing."""
    if division.weights is None:
        parts = division.parts
        count = tf.maximum(0, (total + (parts - 1 - rank)) // parts)
        cut, first = slice(tf.minimum(rank, total - 1), None, parts), []
    else:
        cut, count, begin = run(tf.constant(division.edges, tf.int64), total, rank)
        first = [begin]
    count, total, *first = (tf.cast(number, tf.float32) for number in (count, total, *first))
    return cut, tf.stack([count, total, digest, *first])


def run(edges: Any, total: tf.Tensor, part: int) -> tuple[slice, tf.Tensor, tf.Tensor]:
    """Return where the run of a part is in a global batch, one sample at least, how many samples it
    has, and where it begins. edges: of a division, of int64."""
    many = tf.cast(total, tf.int64)
    begin, end = (tf.cast(many * edges[part + n] // edges[-1], tf.int32) for n in (0, 1))
    first = tf.minimum(begin, total - 1)
    return slice(first, tf.maximum(end, first + 1)), end - begin, begin


def gathered(at: tf.Tensor, whole: Any) -> Any:
    return tree.map_structure(lambda x: tf.gather(x, at, axis=0) if tf.is_tensor(x) else x, whole)


def whole_batches(source: Batches) -> Callable[[int], tf.data.Dataset]:
    """Return what gives the global batches of a source."""
    return partial(_left_out, source.adapter.get_tf_dataset())


Digest = Callable[[Any], tf.Tensor]
"""Of a whole batch, shape (): a number below 2**23, or 0 where nobody compares."""


def of_batches(
    source: Batches,
    ranks: Sequence[int],
    division: Division,
    digest_of: Digest,
    *,
    even: bool = False,
) -> Callable[[int], tf.data.Dataset]:
    """Return what gives the shares of `ranks` of global batches that a source yields, each with the
    digest of its batch. A generator, and what epochs end within, is read as far ahead as Keras
    reads it, and no further: what it draws from may be drawn from elsewhere, and an epoch's end or
    a validation may change the batches that come after it. even: as of arrays."""

    def deal(whole: Any) -> Any:
        leaves = tf.nest.flatten(whole)
        if even and _divides_evenly(leaves, division):
            digest = digest_of(whole)
            runs = [
                tf.nest.map_structure(
                    lambda x, r=rank: of_any_length(x[r :: division.parts]), whole
                )
                for rank in ranks
            ]
            return _of_ranks([{EVEN: run, SHARE: digest} for run in runs])
        return _of_ranks([_cut(whole, rank, division, digest_of(whole)) for rank in ranks])

    return _taken(source, deal)


def undivided_batches(
    source: Batches, division: Division, digest_of: Digest
) -> Callable[[int], tf.data.Dataset]:
    """Return what gives the global batches of a source, which each step takes its run of. division:
    the first."""

    def take(whole: Any) -> Any:
        return {WHOLE: whole, SHARE: _looked_at(digest_of(whole), rows_of(whole), division)}

    return _taken(source, take)


def _taken(source: Batches, take: Callable[[Any], Any]) -> Callable[[int], tf.data.Dataset]:
    """Return what gives `take(batch)` of each global batch. Of a PyDataset that reorders as an
    epoch ends, wherever that is, none is read before its step: how many Keras's own prefetch has
    read is a matter of time, and may be others on each rank. So it is where TensorFlow adds a
    prefetch, which reads one ahead as long as steps are slower than it: here it stays at one."""
    batches = whole_batches(source)
    if source.in_steps and private_data.is_reordered(source.adapter):
        batches = partial(_left_out, private_data.as_asked_for(source.adapter))
    one = source.in_steps and private_data.gains_prefetch(source.adapter)

    @as_it_stands
    def cut(*batch: Any) -> Any:
        sources.check_dense(batch)
        return take(batch[0] if len(batch) == 1 else batch)

    def elements(left_out: int) -> tf.data.Dataset:
        if source.in_steps:  # in turn: TensorFlow would read ahead for a map
            shares = _as_given(batches(left_out).map(cut, synchronous=True))
            return shares.prefetch(1) if one else shares
        if private_data.is_generator(source.adapter):
            return _plain(batches(left_out).map(cut))
        ahead = tf.data.AUTOTUNE
        return _plain(batches(left_out).map(cut, num_parallel_calls=ahead)).prefetch(ahead)

    return elements


def _cut(whole: Any, rank: int, division: Division, digest: tf.Tensor) -> dict[str, Any]:
    leaves, rows = tf.nest.flatten(whole), rows_of(whole)

    def alike() -> tuple[list[Any], tf.Tensor]:
        cut, share = _share(rank, division, rows[0], digest)
        return [x[cut] for x in leaves], share

    def unlike() -> tuple[list[Any], tf.Tensor]:
        samples = samples_of(rows)
        own, share = _share(rank, division, samples, digest)
        places = tf.range(samples)[own]

        def taken(x: Any, n: tf.Tensor) -> Any:
            each, by_itself = n // samples, _share(rank, division, n, digest)[0]
            at = tf.cond(
                tf.equal(n % samples, 0),
                lambda: tf.reshape(places[:, None] * each + tf.range(each), [-1]),
                lambda: tf.range(n)[by_itself],
            )
            return tf.gather(x, at)

        return [taken(x, n) for x, n in zip(leaves, rows, strict=True)], share

    if _alike(leaves):
        own, share = alike()
    else:
        own, share = tf.cond(tf.reduce_any(tf.stack(rows) != rows[0]), unlike, alike)
        share = _looked_at(share, rows, division)
    return {BATCH: tf.nest.pack_sequence_as(whole, own), SHARE: share}


def rows_of(whole: Any) -> list[tf.Tensor]:
    """Return how many rows each tensor of a batch has."""
    return [tf.shape(x, out_type=tf.int32)[0] for x in tf.nest.flatten(whole)]


def samples_of(rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return how many samples a batch has whose tensors have so many rows, as sources.samples_of
    does."""
    if len(rows) == 1:
        return rows[0]
    every = tf.stack(rows)
    return tf.reduce_min(tf.where(every > 1, every, tf.reduce_max(every)))


def _alike(leaves: Sequence[Any]) -> bool:
    """Whether a batch's tensors are known to have as many rows each."""
    known = {None if x.shape.rank is None else x.shape[0] for x in leaves}
    return len(leaves) == 1 or (len(known) == 1 and None not in known)


def _looked_at(share: tf.Tensor, rows: Sequence[tf.Tensor], division: Division) -> tf.Tensor:
    """Return the share, once it is known how many rows each tensor of the batch has."""
    every = tf.stack(rows)

    def look() -> tf.Tensor:
        return tf.numpy_function(partial(sources.look_at_rows, division.parts), [every], tf.int32)

    apart = tf.reduce_any(every != every[0])
    with tf.control_dependencies([tf.cond(apart, look, lambda: tf.constant(0))]):
        return tf.identity(share)


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


def _as_given(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Have TensorFlow read a dataset as far ahead as that asks for, what it is made of as ever."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _plain(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Leave out the graph rewriting that costs more than it brings here, as Keras has it."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return untuned(dataset.with_options(options))
