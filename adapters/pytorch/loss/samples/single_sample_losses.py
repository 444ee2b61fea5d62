"""Losses of one sample that are the only ones on a rank: whether samples' losses are added up, of
which the others are left out here, or the loss is one of a row of a fixed number.

The graph does not tell. But where losses are added up some rank has several, or none, or one of
another row; so the ranks compare theirs in the loop's first steps, and remember what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, final

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import call_at

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.terms import Term

OF_SINGLES = 2
"""Numbers that a rank tells of them."""
_MOST = 48
"""Nodes of a loss by which it is known again."""
_Form = tuple[str, ...]


@final
class SingleSampleLosses:
    """What the ranks have found of such losses."""

    def __init__(self) -> None:
        self._added: set[_Form] = set()

    def figures(self, terms: Sequence[Term]) -> list[float]:
        """What a rank tells: of how many rows it has a loss each, and which the only one is."""
        rows = {term.row for term in terms if term.one_row}
        shares = [term.share for term in terms if term.share is not None]
        if not (rows or any(share.count for share in shares)):
            return [-inf] * OF_SINGLES
        only = next((term.row for term in terms if term.lone), None)
        return [float(len(rows)), -inf if only is None else float(only)]

    def hear(self, terms: Sequence[Term], most: Sequence[float], least: Sequence[float]) -> None:
        """Be told the greatest and the least of each figure."""
        if most[0] > 1.0 or least[0] != most[0] or least[1] != most[1]:
            self._added |= {_form(term.at) for term in terms if term.one_row}

    def settle(self, terms: Sequence[Term]) -> None:
        """Have the only one of a rank count as what is known of such."""
        for term in terms:
            if term.lone and _form(term.at) not in self._added:
                term.not_understood("a loss of one row")


def _form(node: Any) -> _Form:
    """The operations that a sample's loss is made by."""
    form: list[str] = []
    left, seen = [node], {node}
    while left and len(form) < _MOST:
        at = left.pop()
        form.append(at.name())
        for each in graph.operands(at) if call_at(at) is None else ():
            if each not in seen:
                seen.add(each)
                left.append(each)
    return tuple(form)
