"""Shares as Python iterators of torch tensors.

Keras makes an iterator more than it reads in an epoch, and torch draws as one is made: so is
each here, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, final

import torch
from keras import tree

from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.data.share import BATCH, SHARE, BatchShare
from dream.adapters.keras.data.sources import (
    Arrays,
    Batches,
    digest_of,
    digest_of_bytes,
    look_at_rows,
    samples_of,
)
from dream.adapters.keras.private import convert_to_tensor
from dream.adapters.pytorch.data.loader import dealt_of
from dream.data.partition import Divided, global_batches


def of_arrays(source: Arrays, rank: int, divided: Divided) -> Iterable[Any]:
    """Yield the shares of `rank`, global batch after global batch. One part has no share to speak
    of: its elements are the bare batches."""
    return _Passes(lambda: _array_elements(source, _places(source), rank, divided))


def of_batches(source: Batches, rank: int, divided: Divided, *, mixed: bool) -> Iterable[Any]:
    """Yield the shares of `rank` of the global batches that a source yields, each with the digest
    of its batch. mixed: whether ranks of another framework compare it."""
    if divided.now.parts == 1:  # Keras's own may be good for one pass
        return _Passes(lambda: _read(source))
    return _Passes(lambda: _batch_elements(_read(source), rank, divided, mixed=mixed))


def example(source: Arrays | Batches) -> Any:
    """Read what Keras's own trainer reads to build a model."""
    source.begin_epoch()
    if isinstance(source, Arrays):
        first = next(_places(source), slice(0, 1))
        inputs = private_data.sliceable(source.inputs, "torch")
        return tree.map_structure(lambda a: _take(a, first), inputs)
    return next(_whole(source.adapter.get_torch_dataloader()))


@final
class _Passes:
    """A function that makes iterators, as an iterable."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def _places(source: Arrays) -> Iterator[Any]:
    """Begin a pass over the places in the arrays, a global batch at a time."""
    if source.in_own_order:
        loader = iter(source.places.get_torch_dataloader())
        return (places.cpu().numpy() for places in loader)
    return _in_order(source)


def _in_order(source: Arrays) -> Iterator[Any]:
    yield from global_batches(source.order(), source.batch_size)


def _array_elements(
    source: Arrays, batches: Iterator[Any], rank: int, divided: Divided
) -> Iterator[Any]:
    inputs = private_data.sliceable(source.inputs, "torch")
    left_out = source.passes.left_out
    for batch in islice(batches, left_out, None):
        share = divided.now.share(len(batch), rank)
        mine = batch[share.cut]
        shown = mine if len(mine) else batch[:1]
        data = tree.map_structure(lambda a, at=shown: _take(a, at), inputs)
        if divided.now.parts == 1:
            yield data
        else:
            yield {BATCH: data, SHARE: BatchShare.of(share)}
    if left_out:  # Keras makes its further iterator after passes of all batches only
        _places(source)


def _batch_elements(
    batches: Iterator[Any], rank: int, divided: Divided, *, mixed: bool
) -> Iterator[Any]:
    for batch in batches:
        flat = [t for t in tree.flatten(batch) if t is not None]
        rows, digest = [len(t) for t in flat], _digest(flat, mixed=mixed)
        total = rows[0]
        if len(set(rows)) > 1:
            total, _ = samples_of(rows), look_at_rows(divided.now.parts, rows)
        data = tree.map_structure(partial(_own, rank=rank, total=total, divided=divided), batch)
        yield {BATCH: data, SHARE: BatchShare.of(divided.now.share(total, rank), digest)}


def _own(tensor: Any, *, rank: int, total: int, divided: Divided) -> Any:
    """Return this rank's rows of a tensor in a batch of so many samples."""
    if tensor is None:
        return None
    each, rest = divmod(len(tensor), total)
    share = divided.now.share(len(tensor) if rest else total, rank)
    cut = share.cut if share.count else slice(0, 1)
    if rest or each == 1:
        return convert_to_tensor(tensor[cut])
    return convert_to_tensor(tensor.unflatten(0, (total, each))[cut].flatten(0, 1))


def _read(source: Batches) -> Iterator[Any]:
    return _after(_whole(source.adapter.get_torch_dataloader()), source)


def _after(batches: Iterator[Any], source: Batches) -> Iterator[Any]:
    yield from islice(batches, source.passes.left_out, None)


def _whole(loader: Any) -> Iterator[Any]:
    """Iterate over every sample of each global batch: of a loader made in the block, too."""
    dealt = dealt_of(loader)
    if dealt is not None:
        with dealt.reads.told("whole"):
            return iter(loader)
    return iter(loader)


def _take(array: Any, places: Any) -> Any:
    if array is None:
        return None
    return convert_to_tensor(array.convert_to_torch_compatible(array[places]))


def _digest(tensors: list[torch.Tensor], *, mixed: bool) -> int:
    arrays = (tensor.detach().cpu().numpy() for tensor in tensors)
    return digest_of(arrays) if mixed else digest_of_bytes(arrays)
