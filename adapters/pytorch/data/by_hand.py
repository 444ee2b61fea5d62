"""A pass of whole batches: for good, or until a loop trains by gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from dream.adapters.pytorch.data.digests import digest_of
from dream.adapters.pytorch.data.modes import Modes
from dream.adapters.pytorch.data.reading.rows import cut_batch, empty
from dream.adapters.pytorch.data.reading.streams import sizes_of
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.randomness.current import current
from dream.collectives import Communicator
from dream.data.alike import other_batches
from dream.data.partition import Share

_EVALUATES = (
    "the loop trains on a pass over a loader that began while the models were in eval mode: every "
    "rank has all of its batches, which is exact, and no quicker. Call model.train() before the "
    "loop over the loader"
)


def _nothing(_: Any) -> None: ...


@final
class ByHand(Iterator[Any]):
    """The loader's iterator, which this one seems to be. What is counted or trained by hand is one
    device's so; once the loop trains by gradients, a rank has its rows of each batch.

    share: a rank's of a batch of so many samples; None where every batch stays whole, as of a pass
    that begins in evaluation mode: the loop may train on it nonetheless, beside another loader.
    compare: told of a batch that is to be the same on every rank; of None at the end. always: of
    those that are given whole, too.
    """

    def __init__(
        self,
        inner: Iterator[Any],
        shares: Shares,
        modes: Modes,
        share: Callable[[int], Share] | None,
        compare: Callable[[Any], None] = _nothing,
        *,
        always: bool = False,
    ) -> None:
        self._inner, self._shares, self._modes = inner, shares, modes
        self._share, self._cuts = share, False
        self._compare, self._always = compare, always

    def __next__(self) -> Any:
        try:
            batch = self._read()
        except StopIteration:
            self._shares.ended(self)
            if self._always or self._cuts:
                self._compare(None)
            raise
        if self._share is None:
            return self._given_whole(batch)
        evaluates = self._modes.evaluate()
        if self._always or not evaluates:
            self._compare(batch)
        return self._given_whole(batch) if evaluates else self._given(batch, self._share)

    def _read(self) -> Any:
        if self._share is None:
            return next(self._inner)
        try:
            with current.reading():
                return next(self._inner)
        finally:
            current.pardon()

    def _given_whole(self, batch: Any) -> Any:
        """Give a batch as it is. In eval mode the loop may train on it nonetheless."""
        sizes = sizes_of(batch)
        if len(sizes) == 1 and self._modes.differentiates:
            self._shares.handed_whole(batch, sizes.pop(), self, _EVALUATES)
        return batch

    def _given(self, batch: Any, share_of: Callable[[int], Share]) -> Any:
        sizes = sizes_of(batch)
        share = share_of(sizes.pop()) if len(sizes) == 1 else None
        part = None if share is None else _part(batch, share)
        if share is None or part is None:
            return batch
        if not self._cuts:
            self._cuts = True
            self._modes.pass_begins()
        self._shares.yielded(part, share, self)
        self._modes.handed()
        return part

    def __del__(self) -> None:
        self._shares.ended(self)

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def compare_targets(ranks: Communicator) -> Callable[[Any], None]:
    """Return what raises `Desynchronized` where the ranks have read others by number: by a batch's
    targets, since its samples may be drawn anew. Every rank calls it."""

    def compare(batch: Any) -> None:
        told = ranks.all_gather_object(digest_of(tree_leaves(batch)[-1:]))
        if len(set(told)) > 1:
            raise other_batches(told)

    return compare


def _part(batch: Any, share: Share) -> Any:
    if share.count:
        return cut_batch(batch, share.cut, share.total)
    first = cut_batch(batch, slice(0, 1), share.total)
    return None if first is None else empty(first)
