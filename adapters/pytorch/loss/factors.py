"""What the gradient of each term is multiplied by, so that the mean over the ranks is the global
gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from dream.adapters.pytorch.loss.terms import Term
from dream.collectives import Communicator

Factor = float | torch.Tensor


@dataclass(slots=True)
class Weighed:
    """Terms and their factors, in order. late: whether all of them are still to be multiplied, when
    backward has ended, by what was expected to be counted over what all ranks have counted. sent:
    how many things this rank counted beyond what was expected of it."""

    terms: list[Term]
    factors: list[Factor]
    late: bool = False
    expected: float = 0.0
    sent: Factor = 0.0


@final
class Factors:
    """The factors of one strategy's losses.

    What a mean over samples counts for is known here. Where things are counted (tokens, weights of
    classes), the first backward of a loss's structure asks the others how many there are to a
    sample; from then on that is expected, and what differs from it travels with the gradients.
    """

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()
        self._expected: dict[tuple[str, ...], list[float]] = {}

    def weigh(self, terms: Sequence[Term], *, fresh: bool, cut: bool) -> Weighed:
        """fresh: no gradients are there yet that the late factor would multiply too. cut: this is
        one of an update's micro-batches, whose counts are known together at its end."""
        listed = list(terms)
        key = tuple(_shape(term) for term in listed)
        means = [term for term in listed if term.kind == "mean" and term.numel >= 0]
        counted = [term for term in listed if term.kind == "count"]
        if means or counted:
            agreed = self._expected.get(key)
            if agreed is None:
                agreed = self._expected[key] = self._agree(means, counted)
            if agreed[2]:
                for term in counted:
                    term.kind = "count" if term.matches is None else "sum"
                counted = [term for term in listed if term.kind == "count"]
            if agreed[0] and means:
                for term in means:
                    term.kind, term.count = "count", float(term.numel)
                counted = [term for term in listed if term.kind == "count"]
        if not counted:
            return Weighed(listed, [self._static(term) for term in listed])
        expected = self._expected[key]
        alone = len({id(term.count) for term in counted}) == 1 and len(counted) == len(listed)
        if alone and (fresh or cut):
            return self._late(listed, counted[0], expected)
        if cut:
            for term in counted:
                term.kind, term.unknown = "mean", "several denominators in micro-batches"
            return Weighed(listed, [self._static(term) for term in listed])
        return Weighed(listed, self._counted(listed, counted))

    def _late(self, terms: list[Term], term: Term, expected: list[float]) -> Weighed:
        share, each = term.share, expected[1]
        assert share is not None
        count = _number(term.count if share.count else 0.0)
        factor = count * (share.parts / (share.total * each))
        return Weighed(
            terms, [factor] * len(terms), late=True, expected=share.total * each,
            sent=count - share.count * each,
        )  # fmt: skip

    def _counted(self, terms: list[Term], counted: list[Term]) -> list[Factor]:
        """One small sum over the ranks before backward."""
        own = [_number(t.count if t.share is not None and t.share.count else 0.0) for t in counted]
        device = next((c.device for c in own if isinstance(c, torch.Tensor)), None)
        sent = torch.stack([torch.as_tensor(c, dtype=torch.float64, device=device) for c in own])
        totals = self._among.all_reduce(sent, "sum")
        listed = totals.tolist() if device is None else list(totals.unbind())
        by = {id(t): (c, total) for t, c, total in zip(counted, own, listed, strict=True)}
        return [
            _quotient(*by[id(term)], _parts(term)) if id(term) in by else self._static(term)
            for term in terms
        ]

    def _agree(self, means: list[Term], counted: list[Term]) -> list[float]:
        """[whether means are over other things than samples, things to a sample, whether a number
        that sums are divided by is no count], of all ranks."""
        ragged, each = 0.0, 0.0
        other = float(any(term.matches is False for term in counted))
        for term in (*means, *counted):
            rows = term.share.count if term.share is not None else 0
            if rows and term.kind == "mean":
                ragged = max(ragged, float(term.numel % rows != 0))
                each = max(each, term.numel / rows)
            elif rows:
                each = max(each, float(term.count or 0.0) / rows)
        found = self._among.all_reduce(
            torch.tensor([ragged, each, other], dtype=torch.float64), "max"
        )
        most: list[float] = found.tolist()
        return [most[0], most[1] or 1.0, most[2]]

    def _static(self, term: Term) -> Factor:
        if term.kind == "once" or term.share is None:
            return 1.0
        return float(term.share.parts) if term.kind == "sum" else term.share.weight


def late_factor(weighed: Weighed, extra: Factor) -> Factor:
    """The late factor. extra: the sum over the ranks of what they sent."""
    if isinstance(extra, torch.Tensor):
        return weighed.expected / (weighed.expected + extra)
    total = weighed.expected + extra
    return weighed.expected / total if total else 0.0


def _shape(term: Term) -> str:
    """What of a term is alike on all ranks, whatever their shares are: they agree once for each
    structure, and must come to it together."""
    if term.kind == "mean" and term.numel >= 0:
        return "elements"
    if term.kind == "count":
        return "count" if term.matches is None else "number"
    return ""


def _parts(term: Term) -> int:
    return 1 if term.share is None else term.share.parts


def _number(count: Factor | None) -> Factor:
    """A count as a number, where reading it waits for no device."""
    if isinstance(count, torch.Tensor):
        return count if count.is_cuda else float(count)
    return 0.0 if count is None else float(count)


def _quotient(count: Factor, total: Factor, parts: int) -> Factor:
    if isinstance(total, torch.Tensor):
        return torch.where(total == 0, 0.0, count * parts / total)
    return count * parts / total if total else 0.0
