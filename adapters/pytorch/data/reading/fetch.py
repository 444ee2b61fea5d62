"""How a rank reads its part of a global batch: its own samples alone, or all of them where a
sample's numbers depend on the others: random draws while they are read, padding to the longest."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from dream._errors import ConfigurationError
from dream._log import say_once
from dream.adapters.pytorch.data.digests import numbers_of
from dream.adapters.pytorch.data.reading.gather import GatheredBatch, gathered
from dream.adapters.pytorch.devices import number_in
from dream.adapters.pytorch.private import tree_leaves, tree_map
from dream.adapters.pytorch.randomness.generators import digests, states, take
from dream.adapters.pytorch.randomness.own_generators import (
    digests_of,
    held_by,
    states_of,
    take_back,
)

_UNKNOWN, _SHARE, _WHOLE, _DRAWN_IN_WORKERS = range(4)
_UNCUT = (
    "the collate function of this loader draws random numbers, and its batch does not tell which "
    "rows are of which sample, as one of sampled neighbours: every rank has all of it, which is "
    "exact, and no quicker. To share it, draw for a sample by a generator seeded by the sample"
)
_ALL = (True, True, True)
_LOOKS = 8
"""Batches that are read whole before a collate function is taken to pad none: those of a sampler
that puts sentences of like lengths together may need no padding at first."""


@final
class Chosen(list[int]):
    """The indices of a global batch, of which `cut` are this rank's."""

    def __init__(self, indices: Sequence[int], cut: slice) -> None:
        super().__init__(indices)
        self.cut = cut

    def __reduce__(self) -> tuple[Any, ...]:
        return Chosen, (list(self), self.cut)


@final
class Fetched(list[Any]):
    """The samples of a batch. cut: those that are this rank's; None for all. before: the state of
    the generators before they were read, where that is looked at. counts: whether the dataset has
    then other numbers of its own than before."""

    cut: slice | None = None
    before: Any = None
    counts = False


@final
class Fetch:
    """How one loader's samples are read. It finds out with the first batch, or the first ones where
    the script has a collate function, which every rank reads whole. held: generators that the
    dataset and the collate function have for themselves. uncut: whether the batch made last is all
    ranks' samples, which none can tell apart, drawn together."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._found = torch.zeros(1, dtype=torch.int64)
        self._last, self._looked = _UNKNOWN, 0
        self._draws = self.uncut = False
        if loader.num_workers:
            self._found.share_memory_()
        self.collate: Callable[[Any], Any] = default_collate
        self.held: list[Any] = []

    @contextmanager
    def set(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Have an iteration that begins inside read so."""
        own = loader.dataset, loader.collate_fn
        self.collate = loader.collate_fn
        read: dict[str, Any] = {"dataset": _Dataset(loader.dataset, self), "collate_fn": self}
        for name, value in read.items():
            object.__setattr__(loader, name, value)
        try:
            yield
        finally:
            for name, value in zip(("dataset", "collate_fn"), own, strict=True):
                object.__setattr__(loader, name, value)

    def choose(self, batch: list[int], cut: slice) -> list[int] | None:
        """Choose what is read of a batch; None for this rank's samples alone, which `cut` are."""
        if self._last == _UNKNOWN:
            self._last = int(number_in(self._found))
        if self._last in (_UNKNOWN, _WHOLE):
            return Chosen(batch, cut)
        if self._last == _DRAWN_IN_WORKERS:
            say_once(
                "the loader's workers draw random numbers as they read samples: each rank's draw "
                "for its own, so they are not those of one device (num_workers=0 reads the global "
                "batch on every rank, and is)"
            )
        return None

    @property
    def unknown(self) -> bool:
        return number_in(self._found) == _UNKNOWN

    @property
    def reads_alone(self) -> bool:
        """Whether what is read is this rank's samples alone."""
        return self._last == _SHARE

    def __call__(self, given: Any) -> Any:
        """Collate this rank's part."""
        if type(given) is GatheredBatch:
            return list(given)
        cut = getattr(given, "cut", None)
        if cut is None:
            return self.collate(given)
        if self.unknown:
            return self._first(given, cut)
        return self._whole(given, cut)

    def digests(self) -> tuple[Any, ...]:
        """What tells the generators' states, the dataset's own among them."""
        return digests(), digests_of(self.held)

    def _first(self, given: Fetched, cut: slice) -> Any:
        drew = given.before is not None and self.digests() != given.before
        before, own = states(), states_of(self.held)
        start = self.digests()
        part = self.collate(given[cut] or given[:1])
        mixes = self.digests() != start
        varying = varies(given, self.collate)
        if get_worker_info() is not None and (drew or mixes):
            self._found[0] = _DRAWN_IN_WORKERS
            return part
        self._draws |= mixes
        if not (drew or mixes or varying or given.counts):
            self._looked += 1
            if self.collate is default_collate or self._looked == _LOOKS:
                self._found[0] = _SHARE
            return part
        take(before, _ALL)
        take_back(self.held, own)
        whole = self._collated(given, cut)
        if whole is None and not (drew or given.counts or mixes):
            self._found[0] = _SHARE
            return part
        self._found[0] = _WHOLE
        if self.uncut:
            say_once(_UNCUT)
            return whole
        why = "draws random numbers" if drew or mixes else "is padded to the longest"
        why = "changes a number of the dataset's" if given.counts and not (drew or mixes) else why
        if get_worker_info() is None:
            say_once(
                f"a sample of this loader {why} as it is read, so every rank reads the global "
                "batch and keeps its rows"
            )
        return part if whole is None else whole

    def _whole(self, given: Fetched, cut: slice) -> Any:
        whole = self._collated(given, cut)
        return self.collate(given[cut] or given[:1]) if whole is None else whole

    def _collated(self, given: Fetched, cut: slice) -> Any:
        """This rank's rows of the global batch, as `cut_batch` takes them; all of it where it does
        not say which they are, and was drawn together."""
        whole, total = self.collate(list(given)), len(given)
        found = [*_tensors(whole)]
        nested = any(x.is_nested for x in found)  # they have no shape to ask for
        if total < 2 or nested or all(x.shape[:2] != (total, total) for x in found):
            made = cut_batch(whole, cut, total)
            self.uncut = made is None and self._draws
            return whole if self.uncut else made
        drawn, own = states(), states_of(self.held)
        one = [*_tensors(self.collate(given[:1]))]  # as long as many: how does one sample lie?
        take(drawn, _ALL)
        take_back(self.held, own)
        turned = zip(found, one, strict=False) if len(one) == len(found) else ()
        return cut_batch(whole, cut, total, {id(x) for x, of_one in turned if _is_turned(of_one)})


@final
class _Dataset:
    """A dataset whose batches say which samples are this rank's; else it is the user's own."""

    def __init__(self, own: Any, fetch: Fetch) -> None:
        vars(self).update(dream_own=own, dream_fetch=fetch)

    def __getitems__(self, indices: list[int]) -> Fetched | GatheredBatch:
        own, fetch = self.dream_own, self.dream_fetch
        if fetch.reads_alone and (batch := gathered(own, indices, fetch.collate)) is not None:
            return batch
        before, counted = None, []
        if hasattr(indices, "cut") and fetch.unknown:
            fetch.held = held_by(own, fetch.collate)
            before, counted = fetch.digests(), numbers_of(own)
        many = getattr(own, "__getitems__", None)
        plain = list(indices)
        samples = Fetched(many(plain) if many else [own[index] for index in plain])
        samples.cut, samples.before = getattr(indices, "cut", None), before
        samples.counts = any(owner.get(name, x) != x for owner, name, x in counted)
        return samples

    def __getitem__(self, index: Any) -> Any:
        return self.dream_own[index]

    def __len__(self) -> int:
        return len(self.dream_own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("dream_") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dream_own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dream_own, name, value)


def varies(samples: Sequence[Any], collate: Callable[[Any], Any]) -> bool:
    """Whether a collate function may pad samples of several shapes to the longest."""
    custom = collate is not default_collate
    return custom and len({repr(_signature(sample)) for sample in samples}) > 1


def _is_turned(one: torch.Tensor) -> bool:
    """Whether the samples are columns. one: of one sample."""
    return one.dim() > 1 and one.shape[0] != 1 and one.shape[1] == 1


def cut_batch(batch: Any, cut: slice, total: int, turned: Collection[int] = ()) -> Any:
    """Take the rows of a collated batch; None where it does not say which are whose: a tensor has
    neither as many rows as the batch samples, nor as many columns. turned: the ids of tensors whose
    columns are the samples, though they have as many rows."""
    sizes = [x for x in _tensors(batch) if x.dim()]
    if not sizes or any(x.is_nested or total not in x.shape[:2] for x in sizes):
        return None
    return _cut(batch, cut, total, turned)


def rows(batch: torch.Tensor, cut: Any) -> torch.Tensor:
    """Take rows, laid out as a batch of their number would be: models call `view`."""
    part = batch[cut]
    return part.contiguous() if batch.is_contiguous() else part


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)


def _cut(batch: Any, cut: slice, total: int, turned: Collection[int]) -> Any:
    if isinstance(batch, torch.Tensor):
        if not batch.dim():
            return batch
        first = len(batch) == total and id(batch) not in turned
        return rows(batch, cut) if first else rows(batch, (slice(None), cut))
    if isinstance(batch, Mapping):
        made: Any = type(batch)
        return made({key: _cut(value, cut, total, turned) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_cut(value, cut, total, turned) for value in batch))
    if isinstance(batch, (list, tuple)):
        if len(batch) == total and not any(
            len(x.shape) and total in x.shape[:2] for x in _tensors(batch)
        ):
            return batch[cut]
        return type(batch)(_cut(value, cut, total, turned) for value in batch)
    return batch


def _signature(sample: Any) -> Any:
    """The shapes in a sample."""
    if isinstance(sample, (torch.Tensor, np.ndarray)):
        return tuple(sample.shape)
    if isinstance(sample, (str, bytes)):
        return len(sample)
    if isinstance(sample, Mapping):
        return [(key, _signature(value)) for key, value in sample.items()]
    if isinstance(sample, (list, tuple)):
        return [_signature(value) for value in sample] if len(sample) < 64 else len(sample)
    return None


def rows_of(batch: Any) -> int | None:
    """Count the samples in a batch; None where there is no tensor of rows."""
    rows = {len(x) for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()}
    if len(rows) > 1:
        raise ConfigurationError(
            "A batch is cut along dim 0 of its tensors, so all must have a row for each sample. "
            f"Received: tensors of {sorted(rows)} rows."
        )
    return rows.pop() if rows else None


def cut_rows(batch: Any, first: int, stop: int) -> Any:
    """Take some rows of each tensor in a batch; what has none stays whole."""
    cut = slice(first, stop)
    return tree_map(lambda x: x[cut] if isinstance(x, torch.Tensor) and x.dim() else x, batch)


def empty(batch: Any) -> Any:
    """The batch of one sample without that sample: tensors lose their rows, lists their items."""
    if isinstance(batch, torch.Tensor):
        if batch.is_nested:  # which takes no rows of itself
            return _empty_nested(batch)
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, (dict, UserDict)):
        return type(batch)(zip(batch, _empty_parts(batch.values()), strict=True))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*_empty_parts(batch))
    if isinstance(batch, (list, tuple)):
        if _has_items(batch):
            return type(batch)()
        inner = _empty_parts(batch)
        nested = any(isinstance(value, (torch.Tensor, dict, list, tuple)) for value in batch)
        return type(batch)(inner) if nested else type(batch)()
    own = is_dataclass(batch) and not isinstance(batch, type)
    return _empty_fields(batch) if own else batch


def _empty_parts(batch: Iterable[Any]) -> list[Any]:
    """Those of what a batch holds: where one has an item for each sample, so have others."""
    parts = [*batch]
    items = any(_has_items(x) or (_is_single(x) and _is_of_rows(x[0])) for x in parts)
    return [type(x)() if items and _is_single(x) else empty(x) for x in parts]


def _has_items(batch: Any) -> bool:
    """Whether it is a list of samples, as of the boxes of each picture: what torch joins holds no
    dict or tuple alone."""
    return _is_single(batch) and isinstance(batch[0], (dict, tuple))


def _is_of_rows(x: Any) -> bool:
    """Whether a tensor has not one row, as that of one sample would."""
    return isinstance(x, torch.Tensor) and not x.is_nested and x.shape[:1] != (1,)


def _is_single(batch: Any) -> bool:
    return isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields") and len(batch) == 1


def _empty_fields(batch: Any) -> Any:
    """That of a dataclass, where each of its tensors is seen to have a row for the sample; a graph
    has one for each of its nodes."""
    own = {field.name: getattr(batch, field.name, None) for field in fields(batch)}
    tensors = [x for x in own.values() if isinstance(x, torch.Tensor)]
    if not tensors or any(x.is_nested or x.shape[:1] != (1,) for x in tensors):
        return batch
    made = copy(batch)
    for name, value in own.items():
        if not isinstance(value, (str, bytes)):
            object.__setattr__(made, name, empty(value))  # it may be frozen
    return made


def _empty_nested(batch: Any) -> torch.Tensor:
    if batch.layout == torch.jagged:
        rows, offsets = batch.values()[:0], batch.offsets()[:1]
        return torch.nested.nested_tensor_from_jagged(rows, offsets)
    return torch.nested.nested_tensor([], dtype=batch.dtype, device=batch.device)
