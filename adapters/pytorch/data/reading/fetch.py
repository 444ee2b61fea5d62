"""How a rank reads its part of a global batch: its own samples alone, or all of them where a
sample's numbers depend on the others: random draws while they are read, padding to the longest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from dream._log import say_once
from dream.adapters.pytorch.data.digests import numbers_of
from dream.adapters.pytorch.data.reading.gather import GatheredBatch, gathered
from dream.adapters.pytorch.data.reading.rows import cut_batch, cut_parts, is_turned, tensors_in
from dream.adapters.pytorch.devices import number_in
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
        self._ends: frozenset[int] | None = None
        self._pads = True
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
        if not (drew or given.counts or mixes) and (whole is None or not self._pads):
            if not self._ends or self._looked >= _LOOKS:
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
        found = [*tensors_in(whole)]
        nested = any(x.is_nested for x in found)  # they have no shape to ask for
        if total < 2 or nested or all(x.shape[:2] != (total, total) for x in found):
            made = None if self._ends else cut_batch(whole, cut, total)
            if made is None and not (nested or self._draws):
                ends = self._end_to_end(given, cut, found)
                made = cut_parts(whole, cut, total, (), ends) if ends else None
            self.uncut = made is None and self._draws
            return whole if self.uncut else made
        drawn, own = states(), states_of(self.held)
        one = [*tensors_in(self.collate(given[:1]))]  # as long as many: how does one sample lie?
        take(drawn, _ALL)
        take_back(self.held, own)
        turned = zip(found, one, strict=False) if len(one) == len(found) else ()
        return cut_batch(whole, cut, total, {id(x) for x, of_one in turned if is_turned(of_one)})

    def _end_to_end(
        self, given: Fetched, cut: slice, whole: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Collate this rank's samples for the tensors of a batch that are laid end to end, as a CTC
        loss's labels are, beside others that are padded. By the id of each; none where there are
        others that have no row for each sample."""
        if self._ends is None or (self._ends and not self._pads and self._looked < _LOOKS):
            self._looked += 1
            self._look(given, whole)
        if not (self._ends and self._pads):
            return {}  # what a rank collates alone is right
        own = [*tensors_in(self.collate(given[cut] or given[:1]))]
        return {id(whole[at]): own[at] if given[cut] else own[at][:0] for at in self._ends}

    def _look(self, given: Fetched, whole: Sequence[torch.Tensor]) -> None:
        """Find which tensors of a batch are laid end to end, and whether others are padded: by what
        the collate function makes of each sample alone."""
        self._ends, self._pads = frozenset(), False
        with suppress(Exception):  # a script never fails of being looked at
            ones = [[*tensors_in(self.collate([sample]))] for sample in given]
            ends, pads = set(), False
            for place, (x, *each) in enumerate(zip(whole, *ones, strict=True)):
                if x.dim() and len(x) == len(given) and all(len(one) == 1 for one in each):
                    pads |= any(one.shape != x[:1].shape for one in each)
                elif x.dim():
                    if not x.equal(torch.cat(each)):
                        return
                    ends.add(place)
            self._ends, self._pads = frozenset(ends), pads


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
