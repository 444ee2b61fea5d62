"""A model's data as global batches in an order that every rank agrees on, and a digest of them that
is the same in every framework."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
from numpy.typing import NDArray

from dream.adapters.keras import private
from dream.data.partition import check_batch_size, epoch_order


@final
class Passes:
    """Counts passes over the data, each when its order is drawn.

    left_out: batches that the next pass leaves out, since they were taken before.
    """

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self.left_out = 0

    def draw(self) -> int:
        self.next += 1
        return self.next - 1


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays alike in their first dim.

    inputs: x, (x, y) or (x, y, weight), each nested. shuffle: True, False or "batch" (inside each
    batch only).
    """

    inputs: Any
    samples: int
    batch_size: int
    shuffle: Any
    seed: int
    passes: Passes
    fixed = True

    @property
    def num_batches(self) -> int:
        return -(-self.samples // self.batch_size)

    def order(self) -> NDArray[np.int64]:
        """Draw the order of the next pass, shape (samples,)."""
        epoch = self.passes.draw()
        order = epoch_order(self.samples, seed=self.seed, epoch=epoch, shuffle=bool(self.shuffle))
        if self.shuffle == "batch":
            order = np.lexsort((order, np.arange(self.samples) // self.batch_size))
        return order.astype(np.int64, copy=False)

    def begin(self) -> tuple[NDArray[np.int64], int]:
        """Draw that order, and tell how many batches of it are left out."""
        return self.order(), self.passes.left_out

    def begin_epoch(self) -> None:
        """Nothing: each pass draws its order as it begins."""

    def end_epoch(self) -> None:
        """Nothing: arrays hold no workers."""


@dataclass(frozen=True, slots=True)
class Batches:
    """A source that yields global batches.

    adapter: Keras's own. ordered: the PyDataset behind it, where dream gives its order. fixed:
    whether every process gives the batches of a pass in the same order.
    """

    adapter: Any
    passes: Passes
    ordered: OrderedDataset | None = None
    fixed: bool = False

    @property
    def num_batches(self) -> int | None:
        return self.adapter.num_batches  # type: ignore[no-any-return]

    @property
    def batch_size(self) -> int | None:
        return self.adapter.batch_size  # type: ignore[no-any-return]

    def begin_epoch(self) -> None:
        if self.ordered is not None:
            self.ordered.begin_pass()
        self.adapter.on_epoch_begin()

    def end_epoch(self) -> None:
        self.adapter.on_epoch_end()


@final
class OrderedDataset(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
    """A PyDataset with the batches of each pass in dream's order."""

    def __init__(self, inner: Any, seed: int, passes: Passes) -> None:
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self._inner = inner
        self._seed = seed
        self._passes = passes
        self._order = np.arange(inner.num_batches)

    @property
    def num_batches(self) -> Any:
        return self._inner.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._inner[int(self._order[index])]

    def begin_pass(self) -> None:
        """Draw the order of the next pass. Before Keras starts the workers that read by it."""
        self._order = epoch_order(
            self._inner.num_batches, seed=self._seed, epoch=self._passes.draw(), shuffle=True
        )

    def on_epoch_begin(self) -> None:
        self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._inner.on_epoch_end()


def find(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: Any = False,
    class_weight: Any = None,
    seed: int,
    passes: Passes,
    parts: int,
) -> Arrays | Batches:
    """Tell arrays from what yields batches, as Keras does. Keras's own errors come through."""
    ordered = None
    fixed = isinstance(x, keras.utils.PyDataset) and x.num_batches is not None
    if isinstance(x, keras.utils.PyDataset) and shuffle and x.num_batches is not None:
        x = ordered = OrderedDataset(x, seed, passes)
        shuffle = False
    adapter = private.get_data_adapter(
        x, y, sample_weight, batch_size, steps, shuffle, class_weight
    )
    if isinstance(adapter, private.ArrayDataAdapter):
        inputs, samples, size, shuffle = private.array_facts(adapter)
        check_batch_size(size, parts)
        return Arrays(inputs, samples, size, shuffle, seed, passes)
    return Batches(adapter, passes, ordered, fixed)


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
