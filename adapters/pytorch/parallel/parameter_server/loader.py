"""A DataLoader under `parameter_server`: its batches come as leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, final

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler

from dream._errors import Unsupported
from dream._log import logger
from dream.adapters.pytorch.data.modes import Modes
from dream.adapters.pytorch.data.sampling import SeededBatches
from dream.adapters.pytorch.parallel.parameter_server.worker import TorchWorker
from dream.data import tracked
from dream.data.position import Pass, Position
from dream.parameter_server.leases import Epoch, Lease
from dream.parameter_server.worker import LeasedPass


@final
class LeasedBatches(Sampler[list[int]]):
    """A loader's batch sampler: the batches that this worker is dealt where gradients are on,
    every sample where they are off, or every model is in eval mode."""

    def __init__(self, source: SeededBatches, epoch: Epoch) -> None:
        self.batch_size = epoch.batch_size
        self.source, self.epoch = source, epoch
        self.begun: LeasedPass | None = None
        self.start = Position()
        self._batches: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[list[int]]:
        if self.begun is None:
            return iter(self.source)
        self._batches = list(self.source.batches(self.start))
        return self._taken(self.begun)

    def samples(self, lease: Lease) -> list[int]:
        return self._batches[lease.index][lease.part :: lease.parts]

    def _taken(self, begun: LeasedPass) -> Iterator[list[int]]:
        while (lease := begun.take()) is not None:
            yield self.samples(lease)

    @contextmanager
    def during(self, begun: LeasedPass | None, start: Position) -> Iterator[None]:
        """Have an iteration that starts inside read the batches of this pass. start: where what was
        taken before ends."""
        self.begun, self.start = begun, start
        try:
            yield
        finally:
            self.begun = None


@final
class LeasedLoaders:
    """Turns loaders into those whose batches are leased."""

    def __init__(self, worker: TorchWorker, seed: int | None, modes: Modes) -> None:
        self._modes = modes
        self._worker, self._seed, self._told = worker, seed or 0, seed is not None
        self._made = 0

    def made(self, loader: DataLoader[Any], given: Mapping[str, Any]) -> None:
        """Lease the batches of a loader that was made of these arguments."""
        own = given["sampler"] is not None or given["batch_sampler"] is not None
        self.lease(loader, own_order=own or bool(given["shuffle"] and given["generator"]))

    def lease(self, loader: DataLoader[Any], *, own_order: bool | None = None) -> None:
        if isinstance(loader.batch_sampler, LeasedBatches):
            return
        if own_order is None:
            own_order = type(loader.batch_sampler) is not BatchSampler
        if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None or own_order:
            raise Unsupported(
                "The servers hand out batches by index. Received: a DataLoader over "
                f"{type(loader.dataset).__name__} with a stream, or with a sampler or generator of "
                "one's own. Use a map-style dataset, a batch size, and shuffle=True."
            )
        shuffle = not isinstance(loader.sampler, SequentialSampler)
        if shuffle and not self._told:
            self._told = True
            logger.info(
                "workers that do not wait for one another cannot draw one order together: shuffled "
                "batches come in the order of seed=%d, and not in the script's own; seed= of "
                "dream.strategy chooses it", self._seed,
            )  # fmt: skip
        samples = len(loader.dataset)  # type: ignore[arg-type]
        epoch = Epoch(samples, loader.batch_size, loader.drop_last)
        source = SeededBatches(
            loader.dataset,  # type: ignore[arg-type]
            loader.batch_size,
            shuffle=shuffle,
            drop_last=loader.drop_last,
            seed=self._seed,
        )
        # DataLoader refuses a new sampler by assignment, since its workers might run by then
        object.__setattr__(loader, "batch_sampler", LeasedBatches(source, epoch))
        loader.__class__ = self._leased_class(type(loader), self._made)
        self._made += 1
        if self._worker.worker.job.in_step:  # else no batch is where training stands
            tracked.mark(loader, source.track)

    def _leased_class(self, base: type[Any], number: int) -> type[Any]:
        worker, modes = self._worker, self._modes

        def iterate(self: Any) -> Iterator[Any]:
            sampler: LeasedBatches = self.batch_sampler
            if not torch.is_grad_enabled() or modes.evaluate():
                inner: Iterator[Any] = base.__iter__(self)
                return inner
            start = sampler.source.track.begin()
            left = replace(sampler.epoch, samples=sampler.epoch.samples - start.samples)
            key = number, start.epoch
            begun = worker.worker.begin(key, left, ahead=self.num_workers > 0)
            return _LeasedIterator(self, base, begun, worker, start)

        return type(base.__name__, (base,), {"__iter__": iterate, "__module__": base.__module__})


@final
class _LeasedIterator:
    """A pass over a loader."""

    def __init__(
        self, loader: Any, base: type[Any], begun: LeasedPass, worker: TorchWorker, start: Position
    ) -> None:
        self._loader, self._pass, self._worker = loader, begun, worker
        self._sampler: LeasedBatches = loader.batch_sampler
        track, self._start = self._sampler.source.track, start
        self._told = Pass(track, start, trains=True, length=begun.epoch.batches)
        with self._sampler.during(begun, start):
            worker.ready()
            self._inner: Iterator[Any] = base.__iter__(loader)

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._sampler)

    def __next__(self) -> Any:
        self._told.ask()
        lease, batch = self._next()
        if lease is None:
            if self._told.position == self._start:  # others had all: the pass counts all the same
                self._told.ask()
            self._told.ended()
            raise StopIteration
        self._worker.ready()
        self._pass.hand_out(lease)
        taken = min((lease.index + 1) * self._pass.epoch.batch_size, self._pass.epoch.samples)
        self._told.position = replace(
            self._start,
            batches=self._start.batches + lease.index + 1,
            samples=self._start.samples + taken,
        )
        return batch

    def _next(self) -> tuple[Lease | None, Any]:
        if self._pass.granted and self._pass.ahead:  # it cannot overtake what was read ahead
            return self._load(self._pass.granted.popleft())
        try:
            batch = next(self._inner)
        except StopIteration:
            lease = self._pass.take_more()
            return (None, None) if lease is None else self._load(lease)
        return self._pass.taken.popleft(), batch

    def _load(self, lease: Lease) -> tuple[Lease, Any]:
        """Read a batch in this process."""
        dataset = self._loader.dataset
        samples = [dataset[index] for index in self._sampler.samples(lease)]
        return lease, self._loader.collate_fn(samples)

    def __del__(self) -> None:
        self._pass.abandon()
        self._told.left()
