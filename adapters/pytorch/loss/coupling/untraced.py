"""Calls of a model on rows that no batch is seen behind, as those that NumPy or lists of numbers
gave: rows of a batch that went through NumPy, or points that every rank has alike.

In a loop's first steps the ranks compare a digest of them. Rows that are alike are whole on every
rank; from then on it is known by where in the script the call stands.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import final

import torch

from dream._log import Once
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.data.digests import contents_of, is_rounded, rough_contents_of
from dream.adapters.pytorch.data.replicated_rows import CallPlace, ReplicatedRows
from dream.adapters.pytorch.loss.calls import BACKWARD, TrainingCall
from dream.adapters.pytorch.loss.coupling.lineage import Lineage
from dream.adapters.pytorch.loss.coupling.origins import leaves_of
from dream.adapters.pytorch.private import is_batched, to_local
from dream.collectives import Communicator
from dream.data.partition import Share

_SLOTS = 64
"""Calls of a step that are compared."""
_OF_BATCH = 1e200
_AS_MANY = (
    "a model is called on rows that are alike on every rank, and as many as each has of its batch: "
    "they are taken for the batch's. Take other numbers for each row by torch, as by "
    "torch.rand(len(batch)); or, if they are none of the batch's, another number of them"
)
_KEPT = (
    "a model is called on as many rows on every rank, which differ and are no share of the batch, "
    "as those that each rank has kept of its own in a buffer of NumPy's: they are not those of one "
    "device. Keep the rows of all ranks, by strategy.communicator.all_gather, or make such rows of "
    "what every rank has"
)
_REPLAYED = (
    "a model is called on rows of earlier batches that NumPy or lists have kept: each rank keeps "
    "its own rows alone, and takes from these, so they are not those of one device. Keep the rows "
    "of all ranks, by strategy.communicator.all_gather"
)
_SURE = 3
"""Steps in which they are as many."""
_SEVERAL = (
    "a model is called on rows that are alike on every rank, and several times as many as each has "
    "of its batch: they are taken for points of a fixed number, and count once. If they are some "
    "for each of the batch's rows, make them with torch, as with torch.zeros(len(batch), 3, ...)"
)
_LATE = (
    "a model is called on rows that are alike on every rank, which began after the loop's first "
    "steps: they count once, and in the first such step they counted for each rank. Make such rows "
    "before the loop, or call the model on them from its first steps on"
)
_CHANGED = (
    "a model is called, at one place in the script, on rows that were alike on every rank, and now "
    "are not: they count as a batch's, and did not until now. Let a batch's rows stay tensors of "
    "torch, or call the model on others at another place"
)


@final
class UntracedInput:
    """What a call was given. place: where in the script it stands. figure: a digest; another on
    each rank where it is seen to be of a batch. fits: whether it has as many rows as the share;
    several: whether it has several for each. rows: how many, where neither holds. varied: whether
    its rows differ. given: its tensors."""

    __slots__ = ("figure", "fits", "given", "place", "rows", "several", "share", "varied")

    def __init__(
        self, call: TrainingCall, given: list[torch.Tensor], place: CallPlace, figure: float
    ) -> None:
        self.given, self.place, self.figure, self.share = given, place, figure, call.share
        self.fits = place.fits
        first = given[0] if given else None
        count = 0 if call.share is None else call.share.count
        self.several = bool(count) and any(len(x) > count and not len(x) % count for x in given)
        self.rows = len(first) if first is not None and count and len(first) % count else 0
        self.varied = first is not None and bool((first[:1] != first).any())


@final
class UntracedCalls:
    """Has the ranks compare calls on rows that no batch is seen behind. strange: places of calls
    that nobody has compared. off: none is compared, where an update may be begun again on some
    ranks and not on others."""

    def __init__(self, among: Communicator, lineage: Lineage) -> None:
        self._checked, self._among, self._lineage = among, among.unchecked(), lineage
        self.strange: set[object] = set()
        self.off = False
        self._late: set[object] = set()
        self._many: dict[object, tuple[float, int]] = {}
        self._say = Once()

    def asks(self) -> bool:
        """Whether the ranks are to look again, at calls that nobody has compared."""
        asks = bool(self.strange)
        self._late |= self.strange
        self.strange.clear()
        return asks

    def glance(self, share: Share, args: Sequence[object]) -> bool:
        """A model is called after the first steps. Returns whether that is on rows of a number that
        no share has, where nobody has compared."""
        if self.off or share.parts == 1 or share.micros > 1 or not share.count:
            return False
        leaves = []
        for x in args:
            if isinstance(x, torch.Tensor):
                if x.is_nested or share.count in x.shape[:2]:
                    return False
                leaves.append(x)
        if not leaves:
            return False
        alike = self._lineage.alike
        if alike is not None:
            place = alike.place_of(leaves, share.count)
            if place.common not in self._late and alike.judged(place) is None:
                self.strange.add(place.common)
        return bool(self.strange)

    def note(self, call: TrainingCall, args: object, *, meets: bool) -> None:
        """A model is called in a loop's first steps. meets: whether all ranks meet in the forward
        pass anyway, so that they may compare before it; else sizes tell until backward."""
        alike, share = self._lineage.alike, call.share
        if alike is None or self.off or self._among.world_size == 1:
            return
        if share is not None and (share.parts == 1 or share.micros > 1):
            return
        leaves = [x for x in leaves_of(args) if isinstance(x, torch.Tensor) and _is_plain(x)]
        place = alike.place_of(leaves, 0 if share is None else share.count)
        if share is None and not alike.judged(place):
            return  # as all ranks know
        of_batch = not leaves or any(map(self._lineage.is_of_batch, leaves))
        figure = _OF_BATCH * (1 + self._among.rank) if of_batch else sum(map(_figure, leaves))
        found = UntracedInput(call, [] if of_batch else leaves, place, figure)
        call.untraced = found
        if meets:
            self.settle([call])
        elif share is not None and not of_batch and self._seem_whole(leaves, share.count):
            call.share = None

    def _seem_whole(self, leaves: Sequence[torch.Tensor], count: int) -> bool:
        """Whether sizes tell that these are no rows of a share, nor several for each."""
        if count < 2 or any(len(x) == count for x in leaves):
            return False
        return self._lineage.sees_all or all(len(x) % count for x in leaves)

    def settle(self, armed: Iterable[TrainingCall]) -> None:
        """Compare what calls were given: every rank comes here with them. Those on what is alike
        are whole."""
        calls = [call for call in armed if call.untraced is not None][:_SLOTS]
        alike = self._lineage.alike
        if alike is None or not calls:
            return
        found = [call.untraced for call in calls if call.untraced is not None]
        told = [float(zlib.crc32(repr([each.place.common for each in found]).encode()))]
        told += [each.figure for each in found] + [0.0] * (_SLOTS - len(found))
        told += [float(each.fits) for each in found] + [1.0] * (_SLOTS - len(found))
        told += [float(each.rows) for each in found] + [0.0] * (_SLOTS - len(found))
        sent = torch.tensor([*told, *(-x for x in told)], dtype=torch.float64)
        self._checked.meet(BACKWARD)
        most: list[float] = self._among.all_reduce(sent, "max").tolist()
        least = [-x for x in most[len(told) :]]
        for at, (call, each) in enumerate(zip(calls, found, strict=True), 1):
            call.untraced, call.share = None, each.share
            if most[0] == least[0]:  # else the ranks have made other calls
                away = any(map(devices.is_away, each.given))
                same = most[at] == least[at] or (away and is_rounded(most[at], least[at]))
                fits = least[at + _SLOTS] > 0.0
                self._judge(alike, call, each, same=same, fits=fits)
                many = least[at + 2 * _SLOTS]
                if not same and many and many == most[at + 2 * _SLOTS]:
                    self._count_as_many(each.place.common, many)

    def _judge(
        self,
        alike: ReplicatedRows,
        call: TrainingCall,
        found: UntracedInput,
        *,
        same: bool,
        fits: bool,
    ) -> None:
        """same: on all ranks. fits: whether every rank has as many rows of its batch."""
        before = alike.judged(found.place)
        if same and fits and not before:
            if found.varied and found.share is not None:
                self._say(_AS_MANY)
        elif same:
            if before is None and found.place.common in self._late:
                self._say(_LATE)
            if before is None and found.several:
                self._say(_SEVERAL)
            call.share = None
            alike.judge(found.place, found.given, whole=True)
        else:
            if before:
                self._say(_CHANGED)
            if found.given and self._lineage.kept.handed.come_again(found.given[0]):
                self._say(_REPLAYED)
            alike.judge(found.place, (), whole=False)

    def _count_as_many(self, place: object, many: float) -> None:
        before, times = self._many.get(place, (many, 0))
        self._many[place] = many, times + 1 if before == many else 1
        if self._many[place][1] == _SURE:
            self._say(_KEPT)


def _is_plain(x: torch.Tensor) -> bool:
    plain = x.layout == torch.strided and not x.is_nested and x.dim() and to_local(x) is x
    return bool(plain) and not is_batched(x)


def _figure(x: torch.Tensor) -> float:
    """Return what is to be the same where a tensor is: of one on an accelerator, where sums may be
    rounded in another order each time, all but its rounding."""
    if not devices.is_away(x):
        return float(contents_of(x))
    return rough_contents_of(x)
