"""What the gradient of each term is multiplied by, so that the mean over the ranks is the global
gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch

from dream.adapters.pytorch import devices
from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import Bearer, TrainingCall
from dream.adapters.pytorch.loss.divisors import (
    COUNT,
    FIGURES,
    LATE,
    NO_DIVISOR,
    OF_NONE,
    UNEVEN,
    Floor,
    Verdict,
)
from dream.adapters.pytorch.loss.terms import Term
from dream.collectives import Communicator
from dream.data.partition import Share

Factor = float | torch.Tensor
_AGAIN = 8
"""How often ranks agree anew on a constant that changes: a schedule's value changes each step."""


@dataclass(slots=True)
class Weighed:
    """Terms and their factors, in order. late: whether all of them are still to be multiplied, when
    backward has ended, by what was expected to be counted over what all ranks have counted. sent:
    how many things this rank counted beyond what was expected of it. floor: of the ranks'
    count. overtaken: whether this rank divides by what was found to be alike everywhere, and
    differs from it now."""

    terms: list[Term]
    factors: list[Factor]
    late: bool = False
    expected: float = 0.0
    sent: Factor = 0.0
    floor: Floor | None = None
    overtaken: bool = False


@dataclass(slots=True)
class _Agreed:
    """What the ranks have found of a loss's structure. elements: means are over other things than
    samples. each: things to a sample. verdicts: of what its sums are divided by. counted: whether
    things are counted."""

    elements: bool
    each: float
    verdicts: list[Verdict]
    counted: bool


@final
class Factors:
    """The factors of one strategy's losses.

    What a mean over samples counts for is known here. Where things are counted (tokens, weights of
    classes), the first backward of a loss's structure asks the others how many there are to a
    sample; from then on that is expected, and what differs from it travels with the gradients.
    asks: whether the next backward does. once: what a term that every rank has alike counts for,
    which each of an update's micro-batches has.
    """

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()
        self._agreed: dict[tuple[str, ...], _Agreed] = {}
        self._counts: tuple[Bearer | None, float, Floor | None] | None = None
        self._again = 0
        self._first = self.asks = True
        self._divided: tuple[str, ...] = ()
        self._unlike: set[tuple[str, ...]] = set()
        self._empty = self._ragged = False
        self._even: set[tuple[str, ...]] = set()
        self._once = 1.0

    def weigh(
        self,
        terms: Sequence[Term],
        *,
        fresh: bool,
        cut: bool,
        armed: Sequence[TrainingCall] = (),
    ) -> Weighed:
        """fresh: no gradients are there yet that the late factor would multiply too. cut: this is
        one of an update's micro-batches, whose counts are known together at its end. armed: the
        calls since the last backward."""
        listed, self.asks = list(terms), False
        micros = (call.share.micros for call in armed if call.share is not None)
        self._once = 1.0 / max(micros, default=1)
        key = tuple(_shape(term) for term in _each_once(listed) if term.kind != "once")
        means = [term for term in listed if term.kind == "mean" and term.numel >= 0]
        counted = [term for term in listed if term.kind == "count"]
        divided = _each_once(term for term in listed if term.divided is not None)
        of = _call_of_nothing(listed, armed)
        if of is not None or not (means or counted or divided):
            if self._first:
                self._learn(listed, of)
            nothing = self._nothing(listed, of, late=fresh or cut)
            return nothing or Weighed(listed, [self._static(term) for term in listed])
        agreed = self._agreed.get(key)
        if agreed is None:
            agreed = self._agreed[key] = self._agree(means, counted, divided)
            if key in self._unlike:
                agreed.verdicts = [verdict.once_unlike() for verdict in agreed.verdicts]
        if divided:
            self._divided = key
            shares = [each.share for each in divided if each.share is not None]
            self._empty = any(share.total < share.parts for share in shares)
        overtaken = False
        found = dict(zip((each.counts_with for each in divided), agreed.verdicts, strict=False))
        for term in listed:
            if term.divided is not None:
                overtaken |= _judge(term, found[term.counts_with])
        if agreed.elements:
            for term in means:
                term.kind, term.count = "count", float(term.numel)
                term.noticed = term.noticed or (UNEVEN if key in self._even else "")
        else:
            self._even.add(key)
            known = (term for term in means if term.zeroed and not term.unknown)
            self._ragged |= any(map(_uneven, known))
            overtaken |= self._ragged
        counted = [term for term in listed if term.kind == "count"]
        weighed = self._weighed(listed, counted, agreed.each or 1.0, fresh=fresh, cut=cut)
        weighed.overtaken = overtaken
        return weighed

    def look_again(self, *, some: bool) -> bool:
        """On every rank: some rank's divisor is not what was found. At the next backward the ranks
        compare theirs again, unless they have done so too often; return whether they do. some: not
        every rank's, so that it is no constant which changes: be it alike again, it is a count. (A
        rank without samples does not tell.)"""
        self._again += 1
        if some and not self._empty and self._divided == ("divided",):
            self._unlike.add(self._divided)
        if self._again <= _AGAIN:
            self._agreed.clear()
            self._first = self.asks = True
        return self.asks

    def _weighed(
        self, listed: list[Term], counted: list[Term], each: float, *, fresh: bool, cut: bool
    ) -> Weighed:
        if not counted:
            return Weighed(listed, [self._static(term) for term in listed])
        alone = len({term.counts_with for term in counted}) == 1 and len(counted) == len(listed)
        if alone and (fresh or cut):
            return self._late(listed, counted[0], each)
        if cut:
            for term in counted:
                term.kind, term.unknown = "mean", "several denominators in micro-batches"
            return Weighed(listed, [self._static(term) for term in listed])
        return Weighed(listed, self._counted(listed, counted))

    def _late(self, terms: list[Term], term: Term, each: float) -> Weighed:
        share = term.share
        assert share is not None
        self._counts = _bearer(term), each, term.floor
        count = _number(term.count if share.count else 0.0)
        factor = count * (share.parts / (share.total * each))
        return Weighed(
            terms, [factor] * len(terms), late=True, expected=share.total * each,
            sent=_counted_in(term) - share.count * each,
            floor=term.floor,
        )  # fmt: skip

    def _nothing(
        self, terms: list[Term], call: TrainingCall | None, *, late: bool
    ) -> Weighed | None:
        """What a rank tells whose batch has none of what the others' losses count, so that it is
        `outputs.sum() * 0`: a count of none, be there a penalty on parameters beside. None where
        the loss is no such one. call: whose outputs the loss has nothing of."""
        if self._counts is None or call is None or self._counts[0] is not call.bearer:
            return None
        share = call.share
        assert share is not None
        beside = any(term.kind == "once" for term in terms)
        _, each, floor = self._counts
        if beside or not late:
            none = torch.zeros(1, dtype=torch.float64, device=_device_of(call.bearer))
            self._among.all_reduce(none, "sum")
            return Weighed(terms, [self._once if t.kind == "once" else 0.0 for t in terms])
        return Weighed(
            terms, [0.0] * len(terms), late=True, expected=share.total * each,
            sent=-share.count * each, floor=floor,
        )  # fmt: skip

    def _learn(self, terms: list[Term], call: TrainingCall | None) -> None:
        """Be there as the ranks agree on their first losses, whatever this rank's is; and take
        what they have found, where it has none of what theirs count."""
        share = call.share if call is not None else terms[0].share if terms else None
        found = self._agree([], [], [], share)
        if call is not None and (found.each or found.verdicts):
            counts = found.elements or found.counted
            if found.verdicts:
                counts = found.verdicts[0].counts
            key = "divided" if found.verdicts else "count" if found.counted else "elements"
            self._agreed[(key,)] = found
            self._counts = (call.bearer, found.each or 1.0, None) if counts else None

    def _counted(self, terms: list[Term], counted: list[Term]) -> list[Factor]:
        """One small sum over the ranks before backward."""
        once = _each_once(counted)
        if len(once) == 1:
            self._counts = _bearer(once[0]), self._counts[1] if self._counts else 1.0, once[0].floor
        own = [_number(t.count if t.share is not None and t.share.count else 0.0) for t in once]
        away = next((c.device for c in own if isinstance(c, torch.Tensor)), None)
        device = _device_of(_bearer(counted[0]))
        sent = torch.stack(
            [
                torch.as_tensor(_counted_in(term), dtype=torch.float64, device=device)
                for term in once
            ]
        )
        totals = self._among.all_reduce(sent, "sum")
        listed = totals.tolist() if away is None else list(totals.to(away).unbind())
        listed = [_held(total, term.floor) for total, term in zip(listed, once, strict=True)]
        by = {t.counts_with: (c, total) for t, c, total in zip(once, own, listed, strict=True)}
        return [
            _quotient(*by[term.counts_with], _parts(term))
            if term.kind == "count"
            else self._static(term)
            for term in terms
        ]

    def _agree(
        self,
        means: list[Term],
        counted: list[Term],
        divided: list[Term],
        share: Share | None = None,
    ) -> _Agreed:
        """One small message of all ranks; the first has room for the divisor of a loss that this
        rank has none of. share: of such a loss."""
        ragged, each = 0.0, 0.0
        for term in (*means, *counted):
            rows = term.share.count if term.share is not None else 0
            if rows and term.kind == "mean":
                ragged = max(ragged, float(self._ragged or _uneven(term) or _of_several(term)))
                each = max(each, term.numel / rows)
            elif rows:
                each = max(each, float(term.count or 0.0) / rows)
        own = [figure for t in divided if t.divided is not None for figure in t.divided.figures()]
        shares = [term.share for term in divided]
        if self._first and not divided:
            own, shares = [*NO_DIVISOR], [share]
        self._first = False
        sent = torch.tensor([ragged, each, bool(counted), *own], dtype=torch.float64)
        most: list[float] = self._among.all_reduce(sent, "max").tolist()
        found = [most[start : start + FIGURES] for start in range(3, len(most), FIGURES)]
        verdicts = [
            Verdict.of(figures, of)
            for figures, of in zip(found, shares, strict=True)
            if divided or figures[0] > NO_DIVISOR[0]
        ]
        if self._again:
            verdicts = [replace(v, noticed=LATE) if v.count else v for v in verdicts]
        return _Agreed(bool(most[0]), most[1], verdicts, bool(most[2]))

    def _static(self, term: Term) -> Factor:
        if term.kind == "once" or term.share is None:
            return self._once
        if term.kind == "sum":  # of nothing it may be divided by nothing
            nothing = term.divided is not None and term.divided.of_none
            return 0.0 if nothing or not term.share.count else float(term.share.parts)
        return term.share.weight


def late_factor(weighed: Weighed, extra: Factor) -> Factor:
    """The late factor. extra: the sum over the ranks of what they sent."""
    total = _held(weighed.expected + extra, weighed.floor)
    if isinstance(total, torch.Tensor):
        return torch.where(total == 0, 0.0, weighed.expected / total)
    return weighed.expected / total if total else 0.0


def _call_of_nothing(terms: Sequence[Term], armed: Sequence[TrainingCall]) -> TrainingCall | None:
    """The call whose outputs a loss on a batch in parts has nothing of, of whatever it is made;
    None for any other."""
    of_data = [term for term in terms if term.share is not None]
    if not all(graph.vanishes(term.node) for term in of_data):
        return None
    calls = of_data[0].calls if of_data else armed
    return next((each for each in calls if each.share is not None and each.share.parts > 1), None)


def _bearer(term: Term) -> Bearer | None:
    return term.calls[0].bearer if term.calls else None


def _device_of(bearer: Bearer | None) -> torch.device:
    """Where ranks send counts from: one place on all of them, also where one has no sample, and so
    no tensor of its own to tell."""
    trained = [] if bearer is None else bearer.trained
    return trained[0].device if trained else torch.device("cpu")


def _judge(term: Term, verdict: Verdict) -> bool:
    """Have a term be what its divisor was found to be. Returns whether it is that no longer."""
    divided = term.divided
    assert divided is not None
    if verdict.count is not None:
        term.noticed = verdict.noticed_of(divided)
    if verdict.overtaken(divided):
        return True
    if verdict.count:
        if term.kind != "count":
            term.kind, term.count = "count", float(divided.by)
        if divided.nothing:
            term.count = 0.0
        elif verdict.of_tensor and not isinstance(divided.by, torch.Tensor):
            # max(count, 1), which is the number where there is none
            term.floor = Floor(0.0, divided.by, instead=True)
        elif none := divided.stands_for_none():
            term.floor = Floor(0.0, 1.0, instead=True)
        elif none is None:
            term.noticed = OF_NONE
    elif verdict.count is False:
        term.kind, term.count, term.floor = "sum", None, None
    elif divided.counts is False and divided.may_count:  # as it was on every rank before
        term.kind, term.noticed = "mean", COUNT
    elif divided.nothing and term.kind == "count":
        term.count = 0.0
    return False


def _counted_in(term: Term) -> Factor:
    """What a term adds to the ranks' count. Of a batch that a rank has nothing of it is what other
    batches have that are added up with it: more than one, which is made up."""
    if term.share is None:
        return 0.0
    counted = _number(term.count if term.floor is None else term.floor.counted)
    if term.share.count:
        return counted
    return counted if float(counted) > 1.0 else 0.0  # seldom: a device is waited for


def _held(total: Factor, floor: Floor | None) -> Factor:
    held: Factor = total if floor is None else floor.hold(total)
    return held


def _each_once(terms: Iterable[Term]) -> list[Term]:
    """These terms, of samples that are divided by the same one alone, and of others none: a rank
    has as many as samples."""
    found: dict[int, Term] = {}
    for term in terms:
        if term.kind == "count" or term.divided is not None or not term.one_row:
            alike = term.one_row or term.kind == "count"
            found.setdefault(term.counts_with if alike else id(term), term)
    return [*found.values()]


def _shape(term: Term) -> str:
    """What of a term is alike on all ranks, whatever their shares are: they agree once for each
    structure, and must come to it together."""
    if term.divided is not None:
        return "divided"
    if term.kind == "mean" and term.numel >= 0:
        return "of several" if _of_several(term) else "elements"
    return "count" if term.kind == "count" else ""


def _of_several(term: Term) -> bool:
    """Whether a mean may be over another batch than the one whose share is known."""
    return any(call.several for call in term.calls)


def _uneven(term: Term) -> bool:
    """Whether a mean is over other things here than so many for each of a share's samples."""
    return bool(term.share and term.share.count and term.numel % term.share.count)


def _parts(term: Term) -> int:
    return 1 if term.share is None else term.share.parts


def _number(count: Factor | None) -> Factor:
    """A count as a number, where reading it waits for no device."""
    if isinstance(count, torch.Tensor):
        return count if devices.is_away(count) else float(count)
    return 0.0 if count is None else float(count)


def _quotient(count: Factor, total: Factor, parts: int) -> Factor:
    if isinstance(total, torch.Tensor):
        return torch.where(total == 0, 0.0, count * parts / total)
    return count * parts / total if total else 0.0
