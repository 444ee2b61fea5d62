"""A loss as a sum of terms, each a sum, a mean, or a sum over a count, as its graph says."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, final

import torch

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import TrainingCall, call_at
from dream.adapters.pytorch.loss.coupling.unconnected_terms import UnconnectedTerms
from dream.adapters.pytorch.loss.divisors import (
    Floor,
    SumDivisor,
    divided_by_numbers,
    floor_of,
    of_the_one,
    over_samples,
    times_the_rows,
)
from dream.adapters.pytorch.loss.graph_search import FAR, NEAR, GraphSearch, bearers_of
from dream.adapters.pytorch.loss.samples.no_terms import call_of_nothing, keep_read, less_nothing
from dream.adapters.pytorch.loss.samples.row_dims import rows_of
from dream.adapters.pytorch.loss.samples.summed_losses import Summand, parts_of, sum_up
from dream.data.partition import Share

Kind = Literal["mean", "sum", "count", "once"]
"""mean: over samples. sum: over them. count: over `count` things here. once: what every rank has
alike, as a penalty on parameters or a whole batch."""

COUNTED = "dream.counted"
"""A key of a node's metadata: what the user says that the loss is a mean over."""
_CLOSE = 6
_OF_ONE = graph.Reduction(False, (1,), (0,))


@dataclass(slots=True)
class Term:
    """One summand of a loss.

    node: where the gradient comes in. calls: whose outputs it was computed from. share: of their
    batch. plain: nothing but constants comes after its reduction. numel: elements that a mean is
    over, -1 where it is known to be over samples. divided: what a sum is divided by; None where it
    is no sum, or divided by nothing. floor: the least that the count may be. zeroed: where to stop
    what is not finite if nothing counts. unknown: the operation that was not understood, so that it
    counts as a mean over samples. noticed: what was taken for granted. place: the one element
    of the gradient there that is the term's. read: nodes whose constant its divisor is. apart: the
    number that it is, of what has no row of a batch, as far as is known; form: its graph. over: the
    sum or mean that removes the samples. at: its node, before constants. row: the batch's one that
    it is computed from, if it is of one. one_row: whether it is one of samples' that are added up,
    of which a rank has as many as samples. lone: whether it is the only such here, of more rows.
    """

    node: Any
    kind: Kind
    calls: list[TrainingCall]
    share: Share | None = None
    count: torch.Tensor | float | None = None
    plain: bool = True
    numel: int = -1
    divided: SumDivisor | None = None
    floor: Floor | None = None
    zeroed: list[Any] = field(default_factory=list)
    unknown: str = ""
    noticed: str = ""
    place: int | None = None
    read: list[Any] = field(default_factory=list)
    apart: torch.Tensor | None = None
    form: tuple[object, ...] = ()
    over: graph.Reduction | None = None
    at: Any = None
    row: int | None = None
    one_row: bool = False
    lone: bool = False

    @property
    def counts_with(self) -> int:
        """What tells terms that are divided by the same."""
        return id(self.count if self.divided is None else self.divided)

    def not_understood(self, name: str) -> None:
        """It counts as a mean over samples, for this operation."""
        self.kind, self.count, self.plain, self.unknown = "mean", None, False, name
        self.divided = self.floor = None
        self.numel = -1

    def counts_once(self) -> None:
        """It was found to be of parameters alone."""
        self.kind, self.calls, self.share, self.count, self.plain = "once", [], None, None, True
        self.divided = self.floor = None
        self.unknown = self.noticed = ""
        self.read, self.zeroed, self.row = [], [], None


@dataclass(frozen=True, slots=True)
class Divisor:
    """A constant that a term is divided by, the node that is divided, and the one that divides.
    guarded: whether it may be 0, as a count may."""

    by: torch.Tensor | float
    of: Any
    at: Any
    guarded: bool = False


def terms_of(
    root: torch.Tensor, armed: list[TrainingCall], apart: UnconnectedTerms | None = None
) -> list[Term]:
    """Read a loss's graph. armed: the calls since the last backward, for terms whose way to an
    output is not seen. apart: what is known of others like these."""
    reader = _Reader(armed, apart or UnconnectedTerms())
    nothing = call_of_nothing(root)
    if nothing is not None:
        return [Term(root.grad_fn, "sum", [nothing], nothing.share)]
    if root.numel() != 1:
        reader.terms.append(reader.unknown(root.grad_fn, "a gradient of its own"))
    else:
        near = reader.near(root.grad_fn)
        if near is not None:
            return [near]
        reader.split(root.grad_fn, root.grad_fn, None, [], plain=True)
        found, reader.terms = reader.terms, less_nothing(reader.terms)
        sum_up(root.grad_fn, reader.terms)
        keep_read(found, reader.terms)
    return reader.terms


@final
class _Reader:
    def __init__(self, armed: list[TrainingCall], apart: UnconnectedTerms) -> None:
        self._armed, self._apart = armed, apart
        self._looks = GraphSearch(armed)
        self._look = self._looks.below
        self.terms: list[Term] = []

    def near(self, top: Any) -> Term | None:
        """The commonest loss, a reduction with nothing but operations on each element, or along
        other dims than the samples', between it and an output: what `split` finds, in fewer looks.
        None for any other."""
        name = top.name()
        if name in graph.ADD or COUNTED in top.metadata or call_at(top) is not None:
            return None
        reduction = graph.reduction_at(top, name)
        node, way = top, []
        for _ in range(_CLOSE if reduction is not None else 0):
            after = graph.operands(node)
            if len(after) != 1:
                return None
            node = after[0]
            call = call_at(node)
            if call is not None:
                break
            below = node.name()
            if below not in graph.SAMPLEWISE or COUNTED in node.metadata:
                return None
            way.append((node, below))
        else:
            return None
        term = Term(top, "once", [call], zeroed=[node])
        share = term.share = call.share
        if share is None:
            return term
        if any(graph.couples(each, below, share.count) for each, below in way):
            return None
        assert reduction is not None
        self._judge(term, top, name, [reduction], [], ragged=False)
        return term

    def split(
        self,
        node: Any,
        top: Any,
        call: TrainingCall | None,
        divisors: list[Divisor],
        *,
        plain: bool,
    ) -> None:
        """Follow a number to the reductions that it is a sum of. top: where this term's gradient
        comes in. call: whose output it is. divisors: constants on the way."""
        above = ""
        while True:
            name = node.name()
            metadata = node.metadata
            if metadata and COUNTED in metadata:
                self.terms.append(self._counted(node, top, metadata[COUNTED]))
                return
            call = call or call_at(node)
            after = graph.operands(node)
            if name in graph.ADD and len(after) == 2:
                for part in after:
                    self.split(part, part if plain else top, call, divisors, plain=plain)
                if graph.smoothed_at(node):
                    _count_alike(self.terms[-2], self.terms[-1])
                return
            parts = parts_of(node, name, self._of_parameters)
            if parts:
                self._add_up(parts, top, call, divisors, plain=plain)
                return
            if name in graph.SCALE and len(after) == 2:
                rest = self._besides_parameters(name, after, call)
                if rest is None:
                    break
                node, plain = rest, False
                continue
            if len(after) != 1 or not graph.hands_on(node, name):
                break
            divisor = graph.divisor_at(node, name)
            if divisor is not None:
                guarded = above == "WhereBackward0"
                divisors = [*divisors, Divisor(divisor, after[0], node, guarded)]
            node, above = after[0], name
        self.terms.append(self._term(node, name, top, call, divisors, plain=plain))

    def _add_up(
        self,
        parts: list[Summand],
        top: Any,
        call: TrainingCall | None,
        divisors: list[Divisor],
        *,
        plain: bool,
    ) -> None:
        """The terms of losses in one tensor."""
        for part in parts:
            alone = plain and part.product is None
            start = part.node if alone else part.product if plain else top
            before = len(self.terms)
            self.split(part.node, start, call, divisors, plain=alone)
            if plain and not alone:
                for term in self.terms[before:]:
                    term.place = part.place

    def _of_parameters(self, sides: list[Any], call: TrainingCall | None = None) -> list[bool]:
        """Whether each is computed from parameters alone."""
        seen = [self._look(side, call, NEAR) for side in sides]
        return [not (each.data or each.calls) for each in seen]

    def _besides_parameters(self, name: str, after: list[Any], call: TrainingCall | None) -> Any:
        """Of a product with a number that parameters alone give, or a quotient by one: the other
        side."""
        own = self._of_parameters(after, call)
        if own[1] and not own[0]:
            return after[0]
        return after[1] if own[0] and not own[1] and name[0] == "M" else None

    def _term(
        self,
        node: Any,
        name: str,
        top: Any,
        call: TrainingCall | None,
        divisors: list[Divisor],
        *,
        plain: bool,
    ) -> Term:
        """What a number that is no sum of others is."""
        reduction = graph.reduction_at(node, name)
        chain, below = self._chain(node, name, reduction, divisors)
        seen = self._look(node, call, NEAR if call else FAR, skip=chain)
        calls = [call] if call is not None and seen.data else seen.calls
        if not calls and not seen.data:
            return Term(top, "once", [])
        calls = calls or self._behind(node)
        term = Term(top, "once", calls, plain=plain, zeroed=seen.marked)
        if not seen.calls and self._apart.once(term, node):
            return Term(top, "once", [])
        shares = [each.share for each in calls if each.share is not None]
        if not shares:
            return term
        term.share = shares[0]
        if any(each.total != shares[0].total for each in shares):  # alike on all ranks
            return self._not_understood(term, "several batches at once")
        several = any(each.several for each in calls)  # so that one row may be all of a batch's
        rows = None if several else rows_of(node, term.share.count)
        if rows is not None and len(rows) > 1:
            return self._not_understood(term, "a loss of several rows")
        term.at, term.row = node, None if rows is None else min(rows)
        mixed = "" if call is None and seen.calls else self._looks.mixes(node, call, chain)
        if mixed:
            return self._not_understood(term, mixed)
        if reduction is None or not below:
            if term.row is None:
                return self._not_understood(term, name)
            below = [_OF_ONE]
        self._judge(term, node, name, below, divisors, ragged=seen.ragged)
        if term.row is not None:
            term.read = [each.at for each in divisors]
        elif seen.couples and not term.unknown:
            term.unknown, term.plain = seen.couples, False
        return term

    def _behind(self, node: Any) -> list[TrainingCall]:
        """Of what is computed from gradients, the way to the outputs is not seen: the calls of the
        modules whose parameters it comes to."""
        bearers = bearers_of([node], self._armed)
        return [call for call in self._armed if call.bearer in bearers] or self._armed

    def unknown(self, node: Any, name: str) -> Term:
        """A term that counts as a mean over samples."""
        seen = self._look(node, None, FAR)
        calls = seen.calls or self._armed
        shares = [each.share for each in calls if each.share is not None]
        term = Term(node, "once", calls, share=shares[0] if shares else None, zeroed=seen.marked)
        return self._not_understood(term, name) if shares else term

    def _not_understood(self, term: Term, name: str) -> Term:
        term.not_understood(name)
        return term

    def _counted(self, node: Any, top: Any, count: float) -> Term:
        seen = self._look(node, None, FAR)
        calls = seen.calls or self._armed
        shares = [each.share for each in calls if each.share is not None]
        return Term(
            top, "count", calls, shares[0] if shares else Share(1, 1, 1), count=count,
            zeroed=seen.marked or [node],
        )  # fmt: skip

    def _chain(
        self, node: Any, name: str, first: graph.Reduction | None, divisors: list[Divisor]
    ) -> tuple[set[Any], list[graph.Reduction]]:
        """The reductions from a number down, as far as nothing but constants is in between; and
        the nodes on the way. Divisors that are met are added."""
        way: set[Any] = set()
        found: list[graph.Reduction] = []
        reduction = first
        for _ in range(NEAR):
            if reduction is not None:
                found.append(reduction)
            elif name not in graph.PASS and name not in graph.SCALE and name not in graph.SELECT:
                break
            divisor = graph.divisor_at(node, name) if reduction is None else None
            if divisor is not None and not of_the_one(divisor, found):
                divisors += [Divisor(divisor, each, node) for each in graph.operands(node)]
            way.add(node)
            after = graph.operands(node)
            if len(after) != 1 or call_at(after[0]) is not None:
                break
            node = after[0]
            name = node.name()
            reduction = graph.reduction_at(node, name)
        return way, found

    def _judge(
        self,
        term: Term,
        node: Any,
        name: str,
        chain: list[graph.Reduction],
        divisors: list[Divisor],
        *,
        ragged: bool,
    ) -> None:
        """Say what a term is from the reduction that removes the samples."""
        assert term.share is not None
        rows = term.share.count
        times = times_the_rows([x.by for x in divisors], term.share, self._apart.fixed)
        weights = partial(graph.weights_below, node, of_one=rows == 1)
        weight = graph.weight_at(node, name)
        if weight is not None:
            term.kind, term.count, term.noticed = "count", weight, times
            return
        term.over = over = over_samples(chain, rows)
        tensors = [each for each in divisors if isinstance(each.by, torch.Tensor)]
        if tensors:
            count: Any = 1.0
            for each in tensors:
                count = torch.as_tensor(each.by).detach() * count
            term.kind, term.count = "count", count * over.numel if over.mean else count
            term.zeroed = [each.of for each in tensors]
            term.read = [each.at for each in tensors]
            if not over.mean:
                term.floor = floor_of(tensors[0].by) if len(tensors) == 1 else None
                if term.floor is None:  # what is held above a floor is a count
                    whole = any(each.guarded for each in tensors)
                    term.divided = SumDivisor(
                        count, over, term.share, ragged=ragged, whole=whole, weights=weights
                    )
            return
        if over.mean:
            term.kind, term.numel, term.noticed = "mean", over.numel, times
            if ragged:
                term.kind, term.count = "count", float(over.numel)
            return
        numbers = [each.by for each in divisors if not isinstance(each.by, torch.Tensor)]
        term.kind = "sum"
        term.read = [each.at for each in divisors]
        if numbers:
            term.divided = divided_by_numbers(numbers, over, term.share, weights, ragged=ragged)
            term.kind, term.count, term.noticed = term.divided.read()


def _count_alike(first: Term, second: Term) -> None:
    """Two means over the same things, which are counted in one way only."""
    if first.kind == second.kind == "count" and second.divided is not None:
        second.count, second.divided = first.count, None
