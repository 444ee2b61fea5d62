"""Losses that a script adds up itself: put into one tensor, weighed there and summed; or one
sample's each, by a loop over the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, final

import torch

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import call_at
from dream.adapters.pytorch.loss.divisors import SumDivisor, floor_of
from dream.adapters.pytorch.private import saved

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.terms import Term
    from dream.data.partition import Share


OfParameters = Callable[[list[Any]], list[bool]]


@final
@dataclass(frozen=True, slots=True)
class Summand:
    """A summand. product: what it is multiplied in by what parameters give, whose gradient counts
    as the summand does; None where it is multiplied by numbers alone. place: its element there."""

    node: Any
    product: Any = None
    place: int | None = None


def parts_of(node: Any, name: str, of_parameters: OfParameters) -> list[Summand]:
    """What a sum or a mean adds up, where that is losses in one tensor and what parameters give;
    nothing elsewhere. of_parameters: whether each of some nodes is computed from them alone."""
    if name not in graph.SUMS | graph.MEANS:
        return []
    sizes = saved(node, "self_sym_sizes")
    if len(sizes) != 1:
        return []
    left = [Summand(each) for each in graph.operands(node)]
    losses: list[Summand] = []
    added: list[Summand] = []
    while left:
        at = left.pop()
        below = at.node.name()
        if call_at(at.node) is not None:
            return []
        if below in graph.STACK:
            stacked = [each for each, _ in at.node.next_functions]
            if len(stacked) != sizes[0]:
                return []
            losses += [
                Summand(each, at.product, place)
                for place, each in enumerate(stacked)
                if each is not None
            ]
            continue
        further = _through(at, below, of_parameters)
        if further is None:
            return []
        left += further[0]
        added += further[1]
    return [*losses, *added] if losses else []


def _through(
    at: Summand, below: str, of_parameters: OfParameters
) -> tuple[list[Summand], list[Summand]] | None:
    """Where losses may lie on, and what parameters add to them; None where it is neither."""
    way = graph.operands(at.node)
    if len(way) == 1 and below in graph.LINEAR:
        return [Summand(way[0], at.product)], []
    if len(way) != 2:
        return None
    if below in graph.ADD:
        own = of_parameters(way)
        if any(own) and at.product is not None:
            return None
        sides = [*zip(way, own, strict=True)]
        on = [Summand(side, at.product) for side, alone in sides if not alone]
        return on, [Summand(side) for side, alone in sides if alone]
    if below in ("MulBackward0", "DivBackward0"):
        own = of_parameters(way)
        if own[0] != own[1] and (own[1] or below[0] == "M"):
            return [Summand(way[own[0]], at.product or at.node)], []
    return None


def sum_up(root: Any, terms: Sequence[Term]) -> None:
    """Have terms that are one sample's each count as parts of a sum over the samples, or of a mean
    over those that are there. What one is divided by before they are added up is that sample's own;
    what all of them are divided by is a count, or a constant, as of any sum. root: the node that
    the loss is at."""
    singles = [term for term in terms if term.row is not None and not term.unknown]
    if not singles:
        return
    share = singles[0].share
    assert share is not None
    rows = {term.row for term in singles}
    ways = _ways(root, {each.node for each in singles}, alone=len(rows) == 1)
    counts: dict[Any, float] = {}
    sums: dict[tuple[Any, ...], list[Term]] = {}
    for term in singles:
        way = ways.get(term.node)
        if way is None or not (term.plain or _is_plain_sum(term, singles)):
            term.not_understood("a loss of one row")
            continue
        divisors = way.divisors
        if len(rows) == 1 and not (way.added or way.mean):  # what divides it may divide all
            own = (node for node in term.read if node.name()[0] == "D")
            divisors = tuple(dict.fromkeys((*divisors, *own)))
        term.lone = len(rows) == 1 < share.count
        _be_of_one(term)
        if way.mean is not None:
            term.kind, term.count = "count", counts.setdefault(way.mean, _many(way.mean))
        elif divisors:
            sums.setdefault(divisors, []).append(term)
    for divisors, added in sums.items():
        _divide(added, divisors, share)


def _is_plain_sum(term: Term, singles: Sequence[Term]) -> bool:
    """Whether nothing but sums is between samples' losses and a product with what parameters give,
    by which the gradient of all of them is multiplied at once."""
    inside = {each.at for each in singles if each.node is term.node}
    ways = _ways(term.node, inside, alone=False, products=True)
    return term.at in ways and not any(way.mean or way.divisors for way in ways.values())


def _many(mean: Any) -> float:
    """How many things a mean is over."""
    reduction = graph.reduction_at(mean, mean.name())
    return 1.0 if reduction is None else float(reduction.numel)


@final
@dataclass(frozen=True, slots=True)
class _Way:
    """What is between a loss and one sample's. mean: the node that divides them by how many there
    are. divisors: nodes that divide by anything else. added: whether it is seen where
    samples' losses are added up: to a first 0, or in one tensor."""

    mean: Any = None
    divisors: tuple[Any, ...] = ()
    added: bool = False

    def beyond(self, node: Any) -> _Way | None:
        """The way on through a node; None where it is part of a sample's loss."""
        name = node.name()
        if name in graph.MEANS:
            return replace(self, mean=node)
        if graph.divisor_at(node, name) is not None:
            divides = name[0] == "D"  # else a factor, as a weight is
            return replace(self, divisors=(*self.divisors, node)) if divides else self
        weighs = name in ("MulBackward0", "DivBackward0") and len(graph.operands(node)) == 1
        if not weighs and name not in graph.ADD | graph.PASS | graph.STACK | graph.SUMS:
            return None
        sides = graph.operands(node) if name in graph.ADD else ()
        first = len(sides) == 1 or any(map(graph.vanishes, sides))
        return replace(self, added=self.added or first or name in graph.STACK)


def _ways(root: Any, wanted: set[Any], *, alone: bool, products: bool = False) -> dict[Any, _Way]:
    """The ways from a loss to the samples'. alone: there is one sample's, which nothing but where
    it is added to a first 0, or put into a tensor, tells from that of all. products: through those
    with what parameters give, too."""
    found: dict[Any, _Way] = {}
    left = [(root, _Way())]
    while left:
        node, way = left.pop()
        if node in wanted:
            found[node] = _to_the_last(node, way) if alone else way
        elif (beyond := way.beyond(node)) is not None:
            left += [(each, beyond) for each in graph.operands(node)]
        elif products and node.name() in graph.SCALE:
            left += [(each, way) for each in graph.operands(node)]
    return found


def _to_the_last(node: Any, way: _Way) -> _Way:
    """The way from where one sample's loss comes in to where it is added up."""
    on = way
    while not way.added and (beyond := on.beyond(node)) is not None:
        if beyond.added:
            return beyond
        after = graph.operands(node)
        if len(after) != 1:
            break
        node, on = after[0], beyond
    return way


def _be_of_one(term: Term) -> None:
    term.kind, term.count, term.numel = "sum", None, -1
    term.divided = term.floor = None
    term.noticed, term.read, term.one_row = "", [], True


def _divide(added: Sequence[Term], nodes: Sequence[Any], share: Share) -> None:
    """Have a sum of the samples' losses be divided by what divides them at these nodes."""
    numbers: list[Any] = [graph.divisor_at(node, node.name()) for node in nodes]
    by = prod(numbers)
    sizes = [(1,) if term.over is None else term.over.sizes for term in added]
    many, elements = sum(each[0] for each in sizes if each), sum(map(prod, sizes))
    flat = many and not elements % many
    over = graph.Reduction(False, (many, elements // many) if flat else (elements,), (0,))
    own = [each for each in numbers if isinstance(each, float) and each != share.total]
    rows = any(each / share.count in (1, 2, 3, 4) for each in own)
    weights = partial(_weights, added, nodes[0])
    divided = SumDivisor(by, over, share, ragged=True, counts=rows or None, weights=weights)
    for term in added:
        term.divided, term.kind, term.count, term.read = divided, "count", by, [*nodes]
        if isinstance(by, torch.Tensor):
            term.floor = floor_of(by)


def _weights(added: Sequence[Term], top: Any) -> list[tuple[float, bool]]:
    """The sums of what samples' losses are multiplied by, each by itself or in one tensor. top:
    what divides all of them."""
    own = sum(_weight(term.node, term.at) for term in added)
    return [
        (own, True),
        *(each for node in graph.operands(top) for each in graph.weights_below(node)),
    ]


def _weight(node: Any, end: Any) -> float:
    """What one sample's loss is multiplied by."""
    weight = 1.0
    while node is not end and len(graph.operands(node)) == 1:
        other = saved(node, "other" if node.next_functions[0][0] is not None else "self")
        if node.name()[0] == "M" and isinstance(other, torch.Tensor) and other.numel() == 1:
            weight *= float(other)
        (node,) = graph.operands(node)
    return weight
