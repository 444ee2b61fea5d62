"""Losses that a script adds up itself: put into one tensor, weighed there and summed; or one
sample's each, by a loop over the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import call_at
from dream.adapters.pytorch.private import saved, shape_of

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.terms import Term


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


_CLOSE = 12
"""Nodes between a loss and the output that it is of."""


def sum_up(root: Any, terms: Sequence[Term]) -> None:
    """Have terms that are means over one row each count as a sum over the rows, where no count of
    them divides the loss. root: the node that the loss is at."""
    alone = [(term, row) for term in terms if (row := _row_of(term)) is not None]
    if not alone:
        return
    share = alone[0][0].share
    assert share is not None
    summed = _undivided(root, {term.node for term, _ in alone}, share.count)
    added = [(term, row) for term, row in alone if term.node in summed]
    if len({row for _, row in added}) > 1 or share.count == 1:
        for term, _ in added:
            term.kind, term.count = "sum", None
    else:
        for term, _ in added:
            term.unknown, term.plain = "a loss of one row", False


def _undivided(root: Any, wanted: set[Any], rows: int) -> set[Any]:
    """Those of the nodes that a loss adds up without dividing by how many rows there are."""
    found: set[Any] = set()
    left = [root]
    while left:
        node = left.pop()
        if node in wanted:
            found.add(node)
            continue
        name, after = node.name(), graph.operands(node)
        if name in graph.MEANS or (divisor := graph.divisor_at(node, name)) is None:
            passed = name in graph.ADD | graph.PASS | graph.STACK | graph.SUMS
            left += after if passed else []
        elif isinstance(divisor, float) and divisor / rows not in (1, 2, 3, 4):
            left += after
    return found


def _row_of(term: Term) -> int | None:
    """The row of a call's output that a term is a mean over; None where it is over all of them, or
    divided by something."""
    share, node = term.share, term.node
    own = term.kind in ("mean", "count") and not (term.read or term.noticed or term.unknown)
    if not own or share is None or share.total < 2:
        return None
    row: int | None = None
    number = 0
    for _ in range(_CLOSE):
        ways = [(after, at) for after, at in node.next_functions if after is not None]
        if len(ways) != 1:
            return None
        taken = _taken(node, number)
        ((node, number),) = ways
        if taken is not None and shape_of(node)[:1] == (share.count,):
            row = taken
        if call_at(node) is not None:
            return row
    return None


def _taken(node: Any, number: int) -> int | None:
    """The one row that a node takes of what is below it. number: which of what it made."""
    if saved(node, "dim") != 0:
        return None
    if node.name() == "UnbindBackward0":
        return number
    if node.name() == "SelectBackward0":
        return int(graph.signed(saved(node, "index")))
    if node.name() == "SliceBackward0":
        start, stop = (graph.signed(saved(node, each)) for each in ("start", "end"))
        return int(start) if stop - start == 1 else None
    return None
