"""Losses that were put into one tensor, weighed there, and added up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import call_at
from dream.adapters.pytorch.private import saved

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
