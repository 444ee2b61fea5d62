"""Every global batch of a DataLoader, dealt to the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self, final

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from dream._errors import Unsupported
from dream._log import say_once
from dream.adapters.pytorch.data import held
from dream.adapters.pytorch.data.agreement import Order, PassAgreement
from dream.adapters.pytorch.data.by_hand import ByHand, compare_targets
from dream.adapters.pytorch.data.digests import ComparedIterator, digest_of_dataset
from dream.adapters.pytorch.data.modes import Modes
from dream.adapters.pytorch.data.reading.fetch import Fetch
from dream.adapters.pytorch.data.reading.parted import PartedStream
from dream.adapters.pytorch.data.reading.rows import empty
from dream.adapters.pytorch.data.reading.streams import DealtStream
from dream.adapters.pytorch.data.sampling import DealtBatches, Reads, SeededBatches
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.foreign.sampler import dividing, global_batches
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.generators import DrawWatch, InStep, Pardoned
from dream.collectives import Communicator
from dream.data import tracked
from dream.data.partition import Divided
from dream.data.position import Pass
from dream.files.first import others_wait
from dream.mixed.resync import Resyncs

_NAME = "dream_dealt"
_WORKERS_ANEW = (
    "a pass goes on in its midst, and the loader's workers draw anew: samples "
    "that they draw for are not those of an undisturbed training (num_workers=0 goes on exactly)"
)


def mark(loader: Any, dealt: DealtBatches | DealtStream) -> None:
    setattr(loader, _NAME, dealt)
    tracked.mark(loader, dealt.track)


def dealt_of(data: Any) -> DealtBatches | DealtStream | None:
    """Return what deals a loader of the block; None for anything else."""
    return getattr(data, _NAME, None)


def made_by_the_script(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return by name what a loader was given: its data, and what draws and joins its samples."""
    dealt = dealt_of(loader)
    source = dealt.source if isinstance(dealt, DealtBatches) else loader.batch_sampler
    return {
        "dataset": loader.dataset, "sampler": loader.sampler, "batch_sampler": source,
        "collate_fn": loader.collate_fn,
    }  # fmt: skip


def state_dict(loader: Any) -> dict[str, Any]:
    """Say where training on this loader stands: plain numbers, the same on every rank and for any
    number of replicas. A batch counts once it is handed out; one in micro-batches with its last."""
    return tracked.track_of(loader).state()


def load_state_dict(loader: Any, state: Mapping[str, Any]) -> None:
    """Have the next pass to train on go on from there, on every rank: what was handed out is left
    out, and what follows comes in the same order."""
    tracked.track_of(loader).load(state)


@final
class LoaderSharder:
    """Turns loaders into dealt ones: by replacing their batch sampler and class in place."""

    def __init__(
        self,
        communicator: Communicator,
        divided: Divided,
        shares: Shares,
        seed: int | None,
        resyncs: Resyncs | None = None,
        told_by: Communicator | None = None,
        micros: Callable[[], int] = lambda: 1,
        in_step: InStep | None = None,
        modes: Modes | None = None,
        *,
        parted: bool = False,
    ) -> None:
        """divided: how global batches are, now. seed: fixes the order of shuffled data; None leaves
        each loader its own. resyncs: where some ranks are of another framework, with which passes
        are compared. told_by: all ranks, where several of them take the same share. micros: see
        `DealtBatches`. in_step: keeps the ranks' generators so. modes: whether the models of the
        block evaluate. parted: whether a rank reads its own parts of a stream alone."""
        self._communicator, self._divided = communicator, divided
        self._told_by = told_by
        self._all = told_by or communicator
        self._shares = shares
        self._modes = modes or Modes()
        self._agreement = None
        if in_step is not None and resyncs is None:
            self._agreement = PassAgreement(self._all, in_step)
        self._seed = seed
        self._resyncs = resyncs
        self._micros = micros
        self._parted = parted

    def made(self, loader: DataLoader[Any], given: Mapping[str, Any]) -> None:
        """Deal a loader that was made in the block. given: its constructor's arguments."""
        if not held.left_alone():
            self.deal(loader, own_order=_draws_for_itself(given))

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
        if (sampler := dividing(loader)) is not None and self._all.world_size > 1:
            self._deal_divided(loader, sampler)
            return
        self._check(loader)
        if own_order is None:
            own_order = not _plain(loader)
        if own_order and self._resyncs is not None:
            raise Unsupported(
                "Ranks of another framework cannot draw from torch's samplers. Received: a sampler "
                "or a generator of one's own. Remove it: shuffle=True gives the order of "
                "strategy.order(samples, epoch) on every rank."
            )
        fixed = None if own_order else self._seed
        source = loader.batch_sampler if fixed is None else self._seeded(loader, fixed)
        self._take(loader, source)

    def _take(self, loader: DataLoader[Any], source: Any, *, own_parts: bool = False) -> None:
        """Have a loader read its part of the batches of `source`."""
        order = None
        if self._agreement is not None:
            digest = partial(digest_of_dataset, loader)
            order = Order(self._agreement, digest, loader.batch_size)
        reads = Reads(self._evaluates)
        several = order is not None and self._communicator.world_size > 1
        dealt = DealtBatches(
            source, loader, self._communicator, self._divided, reads, order, self._micros,
            own_parts=own_parts, fetch=Fetch(loader) if several else None,
        )  # fmt: skip
        # DataLoader refuses a new sampler by assignment, since its workers might run by then.
        object.__setattr__(loader, "batch_sampler", dealt)
        mark(loader, dealt)
        loader.__class__ = _dealt_class(
            type(loader), self._shares, self._modes, self._compared, self._by_hand
        )

    def _deal_divided(self, loader: DataLoader[Any], sampler: Any) -> None:
        """Deal a loader of a script that divides the data itself: its batch size is a rank's."""
        self._modes.differentiates = True  # what it counts by hand it adds up over the ranks itself
        source = global_batches(loader, sampler, self._all)
        self._take(loader, source, own_parts=True)

    def _deal_stream(self, loader: DataLoader[Any]) -> None:
        if self._resyncs is not None:
            raise Unsupported(
                "Ranks of another framework cannot be shown to read the same stream. Received: a "
                f"DataLoader over {type(loader.dataset).__name__}. Use a map-style dataset."
            )
        self._check(loader)
        parts = None
        if self._parted:
            parts = PartedStream(self._communicator, loader, held.leave_loaders_alone)
        stream = DealtStream(
            self._communicator, self._divided.now, loader, self._seed,
            Reads(self._evaluates), self._told_by, self._micros, parts,
        )  # fmt: skip
        mark(loader, stream)
        loader.__class__ = _dealt_stream_class(
            type(loader), self._shares, self._modes, self._by_hand
        )

    def _evaluates(self) -> bool:
        """Whether a pass that begins now is none to train on."""
        return held.evaluates() or self._modes.evaluate()

    def _by_hand(self, whole: Iterator[Any], stream: DealtStream | None = None) -> Iterator[Any]:
        """The whole batches of a pass; shares, once the loop trains, where it has not begun to."""
        evaluates = held.evaluates() or not torch.is_grad_enabled()
        alone = self._communicator.world_size == 1
        if evaluates or alone or self._micros() > 1 or others_wait():
            return whole
        if self._modes.differentiates:
            return ByHand(whole, self._shares, self._modes, None)
        rank = self._communicator.rank
        compare = compare_targets(self._all) if stream is None else stream.compare_whole
        return ByHand(
            whole, self._shares, self._modes, lambda n: self._divided.now.share(n, rank), compare,
            always=stream is not None,
        )  # fmt: skip

    def _compared(self, batches: _DealtIterator) -> Iterator[Any]:
        """The batches of a pass to train on."""
        if self._resyncs is None:
            return batches
        return ComparedIterator(batches, self._communicator, self._resyncs)

    def _seeded(self, loader: DataLoader[Any], seed: int) -> SeededBatches:
        assert loader.batch_size is not None
        return SeededBatches(
            loader.dataset,  # type: ignore[arg-type]  # a map-style dataset has a length here
            loader.batch_size,
            shuffle=not isinstance(loader.sampler, SequentialSampler),
            drop_last=loader.drop_last,
            seed=seed,
        )

    def _refuse_single_samples(self, loader: DataLoader[Any]) -> None:
        if (self._told_by or self._communicator).world_size > 1:
            raise Unsupported(
                "Single samples cannot be divided among several ranks. Received: a DataLoader over "
                f"{type(loader.dataset).__name__}, batch_size=None. Give it a batch size."
            )

    def _check(self, loader: DataLoader[Any]) -> None:
        if loader.batch_size is not None:
            self._divided.now.check_batch_size(loader.batch_size)
        if loader.num_workers > 0 and not loader.in_order:
            raise Unsupported(
                "Batches that arrive out of order cannot be weighted. Received: in_order=False "
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
    base: type[Any],
    shares: Shares,
    modes: Modes,
    compared: Callable[[_DealtIterator], Iterator[Any]],
    by_hand: Callable[[Iterator[Any]], Iterator[Any]],
) -> type[Any]:
    """The loader's class with an `__iter__` that says whose batch it yields."""

    def iterate(self: Any) -> Iterator[Any]:
        dealt = dealt_of(self)
        assert isinstance(dealt, DealtBatches)
        if self.batch_sampler is not dealt:
            return refuse_replaced(self)
        held.check_read()
        with dealt.beginning() as begun, dealt.fetching(self, begun), current.reading():
            inner: Iterator[Any] = base.__iter__(self)  # with workers, it draws the order here
        if begun is None:
            shares.whole_begins()
            modes.whole_begins()
            return by_hand(Pardoned(inner) if current.watches else inner)
        if begun.trains:
            modes.pass_begins()
            if begun.position.batches and self.num_workers:
                say_once(_WORKERS_ANEW)
        told = modes if begun.trains else None
        iterator = _DealtIterator(inner, begun, shares, told, dealt.fetch)
        return compared(iterator) if begun.trains else iterator

    return _class_like(base, iterate)


def _dealt_stream_class(
    base: type[Any],
    shares: Shares,
    modes: Modes,
    by_hand: Callable[[Iterator[Any], DealtStream], Iterator[Any]],
) -> type[Any]:
    """The same for a loader over a stream."""

    def iterate(self: Any) -> Iterator[Any]:
        stream = dealt_of(self)
        assert isinstance(stream, DealtStream)
        held.check_read()
        if stream.reads.trains:
            modes.pass_begins()
        else:
            shares.whole_begins()
            modes.whole_begins()
            return by_hand(stream.iterate(self, base.__iter__, shares), stream)
        return stream.iterate(self, base.__iter__, shares)

    return _class_like(base, iterate)


def refuse_replaced(loader: Any) -> Iterator[Any]:
    """Refuse a loader whose batch sampler is no longer the one that was dealt."""
    raise Unsupported(
        "A batch sampler that replaces the loader's own after it was made may read ahead of the "
        f"loop, so its batches cannot be dealt. Received: a {type(loader).__name__} with "
        f"{type(loader.batch_sampler).__name__}. Pass batch_sampler= to the DataLoader, or use an "
        "ordinary one with persistent_workers=True."
    )


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

    def __init__(
        self, inner: Iterator[Any], begun: Pass, shares: Shares, modes: Modes | None,
        fetch: Fetch | None,
    ) -> None:  # fmt: skip
        self._inner, self._modes, self._fetch = inner, modes, fetch
        self._pass = begun
        self._shares = shares
        self._drawn = DrawWatch(0 if modes is None else modes.passes)

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return self._pass.length

    def __next__(self) -> Any:
        held.check_read()
        self._drawn.asked()
        self._pass.ask()
        thread = current.thread
        before, thread.reads = thread.reads, True  # as in `current.reading`, at every step
        try:
            batch = next(self._inner)
        except StopIteration:
            self._shares.ended(self)
            self._pass.ended()
            raise
        finally:
            thread.reads = before
            if current.watches:
                current.pardon()
        share = self._pass.handed()
        if share.parts > 1 and self._fetch is not None and self._fetch.uncut:
            self._shares.handed_whole(batch, share.total, self)
            return batch
        if share.count == 0:
            batch = empty(batch)
        self._shares.yielded(batch, share, self)
        if share.parts > 1:
            self._drawn.handed(share.count)
            if self._modes is not None:
                self._modes.handed()
        return batch

    def __del__(self) -> None:
        self._shares.ended(self)
        self._pass.left()
