"""A model's data as global batches in an order that every rank agrees on, and a digest of them that
is the same in every framework."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import keras
import numpy as np
from keras import tree
from numpy.typing import NDArray

from dream._errors import Unsupported
from dream._log import warn_once
from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.randomness.start import Generators
from dream.data.partition import check_batch_size, epoch_order


@final
class DataPasses:
    """Counts passes over the data, each when its order is drawn.

    seed: what orders are drawn from, with the pass; None where `generators` draw them, as Keras
    does. left_out: batches that the next pass leaves out, since they were taken before. kept: what
    the present pass was drawn from. again: the same of a pass that is to be gone on with.
    """

    def __init__(self, seed: int | None = None, generators: Generators | None = None) -> None:
        self.next = 0
        self.left_out = 0
        self.seed = seed
        self.kept: Mapping[str, str] = {}
        self.again: Mapping[str, str] = {}
        self._generators = generators

    def begin(self, *, python: bool) -> None:
        """Begin a pass. python: whether Python's generator draws its order."""
        if self.seed is not None or self._generators is None:
            return
        if self.again and self.left_out:  # not where a batch is only read to build a model
            self._generators.go_on(self.again, python=python)
            self.again = {}
        self.kept = self._generators.kept()

    def draw(self) -> int:
        self.next += 1
        return self.next - 1


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays alike in their first dim.

    inputs: x, (x, y) or (x, y, weight), each nested. shuffle: True, False or "batch" (inside each
    batch only). whole: Keras's own adapter over them. places: the same over the places of the
    samples, which draws the order where no seed fixes it.
    """

    inputs: Any
    samples: int
    batch_size: int
    shuffle: Any
    passes: DataPasses
    whole: Any
    places: Any
    fixed = True

    @property
    def num_batches(self) -> int:
        return -(-self.samples // self.batch_size)

    def order(self) -> NDArray[np.int64]:
        """Draw the order of the next pass, shape (samples,)."""
        epoch = self.passes.draw()
        seed, shuffle = self.passes.seed or 0, bool(self.shuffle)
        order = epoch_order(self.samples, seed=seed, epoch=epoch, shuffle=shuffle)
        if self.shuffle == "batch":
            order = np.lexsort((order, np.arange(self.samples) // self.batch_size))
        return order.astype(np.int64, copy=False)

    @property
    def in_own_order(self) -> bool:
        """Whether Keras draws the order."""
        return self.passes.seed is None

    def begin_epoch(self) -> None:
        if self.shuffle:
            self.passes.begin(python=False)

    def end_epoch(self) -> None:
        """Nothing: arrays hold no workers."""


@dataclass(frozen=True, slots=True)
class Batches:
    """A source that yields global batches.

    adapter: Keras's own. ordered: the PyDataset behind it, where dream gives its order. fixed:
    whether every process gives the batches of a pass in the same order. parted: whether each rank
    reads its own part of it. in_steps: whether an epoch is of a number of batches that was given,
    so that what is read ahead may be of the next.
    """

    adapter: Any
    passes: DataPasses
    ordered: OrderedDataset | None = None
    fixed: bool = False
    parted: bool = False
    in_steps: bool = False

    @property
    def num_batches(self) -> int | None:
        return None if self.parted else self.adapter.num_batches

    @property
    def batch_size(self) -> int | None:
        return self.adapter.batch_size  # type: ignore[no-any-return]

    def begin_epoch(self) -> None:
        if self.ordered is not None:
            self.ordered.begin_pass()
        elif self.fixed:
            self.passes.begin(python=True)
        self.adapter.on_epoch_begin()

    def end_epoch(self) -> None:
        self.adapter.on_epoch_end()


@final
class OrderedDataset(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
    """A PyDataset with the batches of each pass in dream's order."""

    def __init__(self, inner: Any, passes: DataPasses) -> None:
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner = inner
        self._passes = passes
        self._order = np.arange(inner.num_batches)

    @property
    def num_batches(self) -> Any:
        return self.inner.num_batches

    def __getitem__(self, index: int) -> Any:
        return self.inner[int(self._order[index])]

    def begin_pass(self) -> None:
        """Draw the order of the next pass. Before Keras starts the workers that read by it."""
        self._order = epoch_order(
            self.inner.num_batches, seed=self._passes.seed or 0, epoch=self._passes.draw(),
            shuffle=True,
        )  # fmt: skip

    def on_epoch_begin(self) -> None:
        self.inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.inner.on_epoch_end()


def find(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: Any = False,
    class_weight: Any = None,
    passes: DataPasses,
    parts: int,
) -> Arrays | Batches:
    """Tell arrays from what yields batches, as Keras does. Keras's own errors come through."""
    ordered = None
    fixed = isinstance(x, keras.utils.PyDataset) and x.num_batches is not None
    if fixed and shuffle and passes.seed is not None:
        x = ordered = OrderedDataset(x, passes)
        shuffle = False
    adapter = private_data.get_data_adapter(
        x, y, sample_weight, batch_size, steps, shuffle, class_weight
    )
    if isinstance(adapter, private_data.ArrayDataAdapter):
        inputs, samples, size, shuffle = private_data.array_facts(adapter)
        check_batch_size(size, parts)
        places = private_data.get_data_adapter(np.arange(samples), None, None, size, None, shuffle)
        return Arrays(inputs, samples, size, shuffle, passes, adapter, places)
    return Batches(adapter, passes, ordered, fixed, in_steps=steps is not None)


_DEALT, _BY_FILES = ("AUTO", "DATA"), ("AUTO", "FILE")


def in_parts(source: Arrays | Batches, x: Any, steps: Any, at_once: int) -> Arrays | Batches:
    """Return what each rank reads its own part of. x: the data. steps: of an epoch, where they are
    given. at_once: those that Keras takes at a time. (Of arrays each rank gathers its share.)"""
    if isinstance(source, Arrays):
        return source
    if not private_data.is_tf_dataset(x) or not hasattr(x, "options"):
        raise Unsupported(
            "A rank's own part is read of a tf.data.Dataset that is made from files. Received: "
            f"input='sharded' and a {type(x).__name__}, of which a batch is the global one. Remove "
            "input=."
        )
    if steps is not None or at_once > 1:
        raise Unsupported(
            "An epoch of parts that ranks read alone ends with the last of them, and ranks meet in "
            f"each step. Received: input='sharded', steps_per_epoch={steps}, "
            f"steps_per_execution={at_once}. Remove them."
        )
    policy = x.options().experimental_distribute.auto_shard_policy.name
    if policy not in _BY_FILES:
        raise Unsupported(
            "Ranks read files of their own under input='sharded'. Received: "
            f"auto_shard_policy=AutoShardPolicy.{policy}. Remove it, or use AutoShardPolicy.FILE."
        )
    return replace(source, parted=True)


def check_auto_shard(x: Any) -> None:
    """Refuse a tf.data.Dataset that asks to be divided among processes otherwise than by samples:
    every process reads it whole here, and keeps its rows of each batch."""
    if not private_data.is_tf_dataset(x) or not hasattr(x, "options"):
        return
    policy = x.options().experimental_distribute.auto_shard_policy.name
    if policy not in _DEALT:
        raise Unsupported(
            "A batch of a tf.data.Dataset is the global one: every rank reads it, and keeps its "
            f"rows. Received: auto_shard_policy=AutoShardPolicy.{policy}. Remove it, or use "
            "AutoShardPolicy.DATA, which is what happens here."
        )


def samples_of(rows: Sequence[int]) -> int:
    """Return how many samples a batch has whose tensors have so many rows: the fewest, save that a
    single row is shown to all replicas. Each sample has as many rows of every tensor, one after
    another, where that is a whole number; else a tensor is divided by itself."""
    return min((n for n in rows if n > 1), default=1)


def look_at_rows(parts: int, rows: Sequence[int]) -> np.int32:
    """Say of a batch whose tensors have so many rows if one is divided by itself. Returns 0, for a
    graph to wait for."""
    samples = samples_of(rows)
    if any(n > 1 and n % samples for n in rows):
        warn_once(
            "A batch of tensors whose rows are no multiples of one another's is divided tensor by "
            "tensor, and gradients and metrics count by a replica's share of the shortest: a mean "
            "over another, and what is drawn for it, is not one device's. Received: "
            f"{', '.join(map(str, rows))} rows for {parts} replicas. Give all tensors of a batch "
            "one length, or a multiple of it (drop_remainder=True)"
        )
    return np.int32(0)


DIGESTS = 2**23


def digest_of(arrays: Iterable[NDArray[Any]]) -> int:
    """Return a number below DIGESTS, not 0, that batches with other content hardly share. Backends
    load numbers in widths of their own, so all are brought to one."""
    return digest_of_bytes(
        a.astype(np.float32 if a.dtype.kind == "f" else np.int64) for a in arrays
    )


def digest_of_bytes(arrays: Iterable[NDArray[Any]]) -> int:
    """Do the same between ranks that load numbers alike."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return crc % (DIGESTS - 1) + 1


_MADE_DENSE = {"SparseTensor": "tf.sparse.to_dense(x)", "RaggedTensor": "x.to_tensor()"}


def check_dense(batch: Any) -> None:
    """Refuse tensors whose rows cannot be taken as those of others are."""
    for x in tree.flatten(batch):
        how = _MADE_DENSE.get(type(x).__name__)
        if how is not None:
            raise Unsupported(
                "A batch's rows are dealt out, and sparse and ragged tensors do not hold theirs as "
                f"others do. Received: a {type(x).__name__} of shape {x.shape}. Make it dense in "
                f"the data, as by dataset.map(lambda x, y: ({how}, y))."
            )
