"""What a process reads of a stream's parts: one of a rank's loader's workers, or the rank itself.

A part is what the dataset gives to a worker of that number: `get_worker_info()` says so while it is
read, and its generators are the part's own, whichever rank and process reads it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from dream._errors import Unsupported
from dream.adapters.pytorch.data.digests import digest_of
from dream.adapters.pytorch.data.reading.fetch import varies
from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.private import worker_info
from dream.adapters.pytorch.randomness.generators import digests
from dream.data.partition import Share, micro_shares
from dream.data.parts import PARTS, PLACES, Counts

_LOOKED_AT = 2
"""Samples that the first parts are told apart by."""
_SEEDS = 2**32
_NUMPY: Any = np.random  # whose generator can be another: not in its types


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What the next batch takes of a worker's parts on this rank.

    of: which pass. counts: samples of each place, 0 for those of other ranks. micros: parts that it
    is collated in. look: whether the first parts are to be told apart.
    """

    of: int
    worker: int
    seed: int
    counts: Counts
    micros: int
    look: bool


class Read(NamedTuple):
    """What there was: samples of each place, and a digest of them; micro-batches, none where there
    was no sample. told: digests of the first parts. alone: whether rows hang on one another."""

    counts: list[int]
    digests: list[int]
    batches: list[Any]
    told: list[int]
    alone: bool


@final
class PartReader:
    """The samples of one part. number: as a worker's, of so many."""

    def __init__(
        self, dataset: Any, number: int, of: int, seed: int, init: Callable[[int], None] | None
    ) -> None:
        self._dataset, self._init = dataset, init
        self._number, self._of, self._seed = number, of, seed
        self._samples: Iterator[Any] | None = None
        self._numpy = np.random.MT19937(seed)
        self._states: tuple[Any, Any] | None = None

    def read(self, count: int) -> list[Any]:
        """The next samples, fewer where it ends. Leaves the generators its own."""
        owner, name, kind = worker_info()
        if self._samples is None:
            self._dataset = _copy(self._dataset)
        patches = Patches()
        patches.replace(owner, name, kind(self._number, self._of, self._seed, self._dataset))
        _NUMPY.set_bit_generator(self._numpy)  # its state takes longer to read than a sample
        try:
            if self._samples is None:
                self._samples = self._begin()
            else:
                assert self._states is not None
                torch.set_rng_state(self._states[0])
                random.setstate(self._states[1])
            return list(islice(self._samples, count))
        finally:
            self._states = torch.get_rng_state(), random.getstate()
            patches.restore()

    def _begin(self) -> Iterator[Any]:
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        np.random.seed(self._seed % _SEEDS)
        if self._init is not None:
            self._init(self._number)
        return iter(self._dataset)


@contextmanager
def _generators_stay() -> Iterator[None]:
    """What is drawn inside is drawn by nobody outside."""
    of_torch, of_python, of_numpy = (
        torch.get_rng_state(), random.getstate(), _NUMPY.get_bit_generator()
    )  # fmt: skip
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        _NUMPY.set_bit_generator(of_numpy)


def _copy(dataset: Any) -> Any:
    """As a worker has one of its own."""
    try:
        return deepcopy(dataset)
    except Exception as error:
        raise Unsupported(
            "Each part of a stream is read from its own copy of the dataset. Received: a "
            f"{type(dataset).__name__} that cannot be copied ({error}). Open files in __iter__."
        ) from error


@final
class PartsReader(Dataset[Read]):
    """What a loader's worker, or the loader itself, reads of this rank's parts on request."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset = loader.dataset
        self._workers = max(1, loader.num_workers)
        self.collate: Callable[[Any], Any] = loader.collate_fn
        self.init = loader.worker_init_fn
        self._open: dict[int, dict[int, PartReader]] = {}

    def __getitem__(self, request: BatchRequest) -> Read:
        samples: list[Any] = []
        counts, found = [0] * PARTS, [0] * PARTS
        with _generators_stay():
            told = [self._look(request, number) for number in range(2)] if request.look else []
            for place, count in enumerate(request.counts):
                if count:
                    read = self._part(request, place).read(count)
                    counts[place], found[place] = len(read), digest_of(read)
                    samples += read
        batches, alone = self._collated(samples, request)
        return Read(counts, found, batches, told, alone)

    def forget(self, of: int) -> None:
        """A pass is over."""
        self._open.pop(of, None)

    def _part(self, request: BatchRequest, place: int) -> PartReader:
        if request.of not in self._open:
            if get_worker_info() is not None:  # one pass at a time there
                self._open.clear()
            self._open[request.of] = {}
        parts = self._open[request.of]
        if place not in parts:
            number = request.worker * PARTS + PLACES[place]
            parts[place] = self._made(number, request.seed + number)
        return parts[place]

    def _look(self, request: BatchRequest, number: int) -> int:
        """A digest of how a part begins, from the seed that all are looked at with."""
        return digest_of(self._made(number, request.seed).read(_LOOKED_AT))

    def _made(self, number: int, seed: int) -> PartReader:
        return PartReader(self._dataset, number, self._workers * PARTS, seed, self.init)

    def _collated(self, samples: list[Any], request: BatchRequest) -> tuple[list[Any], bool]:
        if not samples:
            return [], False
        before = digests() if request.look else None
        cuts = [part.cut for part in runs(Share(len(samples), len(samples), 1), request.micros)]
        # A collate function needs a sample to show its shape; the loader drops it again.
        made = [self.collate(samples[cut] or samples[:1]) for cut in cuts]
        if before is None:
            return made, False
        return made, digests() != before or varies(samples, self.collate)


def runs(share: Share, micros: int) -> list[Share]:
    """A share in so many runs, be some of them empty."""
    cut = micro_shares(replace(share, most=max(share.largest, micros)), micros)
    return [replace(part, most=share.most) for part in cut]
