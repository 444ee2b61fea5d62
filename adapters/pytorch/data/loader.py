"""Every global batch of a DataLoader, dealt to the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.data.sampling import DealtBatches, SeededBatches
from dream.adapters.pytorch.data.shares import Shares, empty
from dream.adapters.pytorch.data.streams import DealtStream
from dream.adapters.pytorch.hooks import observed
from dream.adapters.pytorch.private import tree_leaves
from dream.collectives import Communicator
from dream.data import tracked
from dream.data.partition import check_batch_size
from dream.data.position import Pass
from dream.mixed.order import Targets
from dream.mixed.resync import Resyncs

if TYPE_CHECKING:
    from dream.adapters.pytorch.data.sampling import DealtBatches
    from dream.adapters.pytorch.data.streams import DealtStream


_NAME = "dream_dealt"


def mark(loader: Any, dealt: DealtBatches | DealtStream) -> None:
    setattr(loader, _NAME, dealt)
    tracked.mark(loader, dealt.track)


def dealt_of(data: Any) -> DealtBatches | DealtStream | None:
    """Return what deals a loader of the block; None for anything else."""
    return getattr(data, _NAME, None)


def state_dict(loader: Any) -> dict[str, Any]:
    """Say where training on this loader stands: plain numbers, the same on every rank and for any
    number of replicas. A batch counts once it is handed out; one in micro-batches with its last."""
    return tracked.track_of(loader).state()


def load_state_dict(loader: Any, state: Mapping[str, Any]) -> None:
    """Have the next pass to train on go on from there, on every rank: what was handed out is left
    out, and what follows comes in the same order."""
    tracked.track_of(loader).load(state)


def targets_of(batch: Any) -> np.ndarray[Any, Any]:
    """Return what the loss of a batch is taken against: its last tensor."""
    last = [x for x in tree_leaves(batch) if isinstance(x, torch.Tensor)][-1].detach().cpu()
    return (last.float() if last.is_floating_point() else last).numpy()


@final
class Compared:
    """An iterator that compares after its first batch and at its end, where weights settle."""

    def __init__(
        self, batches: _DealtIterator, communicator: Communicator, resyncs: Resyncs
    ) -> None:
        self._resyncs = resyncs
        self._batches = batches
        self._communicator = communicator
        self._seen = Targets()
        self._any = False

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._seen.compare(self._communicator, "an epoch's batches")
            self._resyncs.settle()
            raise
        self._seen.add(self._communicator.rank, targets_of(batch))
        if not self._any:
            self._any = True
            self._seen.compare(self._communicator, "the first batch")
        return batch


_left_alone: ContextVar[bool] = ContextVar("dream.loaders_left_alone", default=False)


@contextmanager
def leave_loaders_alone() -> Iterator[None]:
    """Loaders that a library makes inside are its own business (Keras's fit makes one)."""
    token = _left_alone.set(True)
    try:
        yield
    finally:
        _left_alone.reset(token)


@final
class LoaderSharder:
    """Turns loaders into dealt ones: by replacing their batch sampler and class in place."""

    def __init__(
        self,
        communicator: Communicator,
        shares: Shares,
        seed: int,
        resyncs: Resyncs | None = None,
        told_by: Communicator | None = None,
        micros: Callable[[], int] = lambda: 1,
    ) -> None:
        """resyncs: where some ranks are of another framework, with which passes are compared.
        told_by: all ranks, where several of them take the same share; what rank 0's own sampler
        draws is every rank's, with gradients off too. micros: see `DealtBatches`."""
        self._communicator = communicator
        self._told_by = told_by
        self._shares = shares
        self._seed = seed
        self._resyncs = resyncs
        self._micros = micros

    def made(self, loader: DataLoader[Any], given: Mapping[str, Any]) -> None:
        """Deal a loader that was made in the block. given: its constructor's arguments."""
        if not _left_alone.get():
            self.deal(loader, own_order=_draws_for_itself(given))

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`DataLoader.__init__` likewise, where replacements are made by hand."""
        return observed(init, [], [self.made], binds=True)

    def deal(self, loader: DataLoader[Any], *, own_order: bool | None = None) -> None:
        """Deal a loader. own_order: whether its order is the user's sampler's or generator's."""
        if dealt_of(loader) is not None:
            return
        if isinstance(loader.dataset, IterableDataset):
            self._deal_stream(loader)
            return
        if loader.batch_sampler is None:
            self._refuse_single_samples(loader)
            return
        self._check(loader)
        if own_order is None:
            own_order = not _plain(loader)
        if own_order and self._resyncs is not None:
            raise Unsupported(
                "Ranks of another framework cannot draw from torch's samplers. Received: a sampler "
                "or a generator of one's own. Leave it out: shuffle=True gives the order of "
                "strategy.order(samples, epoch) on every rank."
            )
        source = loader.batch_sampler if own_order else self._seeded(loader)
        dealt = DealtBatches(
            source, self._communicator, loader.batch_size, self._told_by, self._micros
        )
        # DataLoader refuses a new sampler by assignment, since its workers might run by then.
        object.__setattr__(loader, "batch_sampler", dealt)
        mark(loader, dealt)
        loader.__class__ = _dealt_class(type(loader), self._shares, self._compared)

    def _deal_stream(self, loader: DataLoader[Any]) -> None:
        if self._resyncs is not None:
            raise Unsupported(
                "Ranks of another framework cannot be shown to read the same stream. Received: a "
                f"DataLoader over {type(loader.dataset).__name__}. Use a map-style dataset."
            )
        self._check(loader)
        stream = DealtStream(
            self._communicator, loader.batch_size, self._seed, self._told_by, self._micros
        )
        mark(loader, stream)
        loader.__class__ = _dealt_stream_class(type(loader), self._shares)

    def _compared(self, batches: _DealtIterator) -> Iterator[Any]:
        """The batches of a pass to train on."""
        if self._resyncs is None:
            return batches
        return Compared(batches, self._communicator, self._resyncs)

    def _seeded(self, loader: DataLoader[Any]) -> SeededBatches:
        assert loader.batch_size is not None
        return SeededBatches(
            loader.dataset,  # type: ignore[arg-type]  # a map-style dataset has a length here
            loader.batch_size,
            shuffle=not isinstance(loader.sampler, SequentialSampler),
            drop_last=loader.drop_last,
            seed=self._seed,
        )

    def _refuse_single_samples(self, loader: DataLoader[Any]) -> None:
        if (self._told_by or self._communicator).world_size > 1:
            raise Unsupported(
                "Samples that come one by one cannot be dealt to several ranks. Received: a "
                f"DataLoader over {type(loader.dataset).__name__}, batch_size=None. Give it a "
                "batch size."
            )

    def _check(self, loader: DataLoader[Any]) -> None:
        if isinstance(loader.sampler, DistributedSampler):
            raise ConfigurationError(
                "dream deals every global batch to the ranks itself. Received: a "
                "DistributedSampler. Leave the sampler out and say shuffle=True."
            )
        if loader.batch_size is not None:
            check_batch_size(loader.batch_size, self._communicator.world_size)
        if loader.num_workers > 0 and not loader.in_order:
            raise Unsupported(
                "Batches that overtake each other cannot be weighed. Received: in_order=False "
                f"with num_workers={loader.num_workers}. Leave in_order at True."
            )


def _draws_for_itself(given: Mapping[str, Any]) -> bool:
    """Whether the user brought a sampler or a generator: its order is honoured then."""
    return any(given[name] is not None for name in ("sampler", "batch_sampler")) or bool(
        given["shuffle"] and given["generator"] is not None
    )


def _plain(loader: DataLoader[Any]) -> bool:
    """Whether a finished loader's order is what `shuffle=` gives."""
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    if type(loader.sampler) is RandomSampler:
        return loader.sampler.generator is None and loader.sampler.num_samples == len(
            loader.sampler.data_source
        )
    return type(loader.sampler) is SequentialSampler


def _dealt_class(
    base: type[Any], shares: Shares, compared: Callable[[_DealtIterator], Iterator[Any]]
) -> type[Any]:
    """The loader's class with an `__iter__` that says whose batch it yields."""

    def iterate(self: Any) -> Iterator[Any]:
        sampler: DealtBatches = self.batch_sampler
        inner: Iterator[Any] = base.__iter__(self)  # asks the sampler for a new pass
        begun = sampler.begun()
        if begun is None:
            return inner
        dealt = _DealtIterator(inner, begun, shares)
        return compared(dealt) if begun.trains else dealt

    return _class_like(base, iterate)


def _dealt_stream_class(base: type[Any], shares: Shares) -> type[Any]:
    """The same for a loader over a stream."""

    def iterate(self: Any) -> Iterator[Any]:
        stream = dealt_of(self)
        assert isinstance(stream, DealtStream)
        return stream.iterate(self, base.__iter__, shares)

    return _class_like(base, iterate)


def _class_like(base: type[Any], iterate: Callable[[Any], Iterator[Any]]) -> type[Any]:
    body = {
        "__iter__": iterate,
        "__module__": base.__module__,
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
    }
    return type(base.__name__, (base,), body)


@final
class _DealtIterator:
    """A loader's iterator that marks each batch with its share."""

    def __init__(self, inner: Iterator[Any], begun: Pass, shares: Shares) -> None:
        self._inner = inner
        self._pass = begun
        self._shares = shares

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return self._pass.length

    def __next__(self) -> Any:
        self._pass.ask()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._shares.ended()
            self._pass.ended()
            raise
        share = self._pass.handed()
        if share.count == 0:
            batch = empty(batch)
        self._shares.yielded(batch, share)
        return batch

    def __del__(self) -> None:
        self._shares.ended()
