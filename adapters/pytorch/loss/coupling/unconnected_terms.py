"""Terms of a loss that no output is seen below, and that data may have come into by an index or a
product: whether they are of parameters and constants alone, and so count once.

The graph does not tell. But such a term is the same number on every rank, where rows have not gone
into it; so the ranks compare it in their first steps, and remember what it was.
"""

from __future__ import annotations

import zlib
from collections.abc import MutableMapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.coupling.origins import node_of
from dream.adapters.pytorch.private import note, to_local

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.terms import Term

_VALUE = "dream.apart"
"""A key of a graph node's metadata: the number that it made, of no row of a batch."""
_SLOTS = 8
"""Terms of a loss that are compared."""
FIGURES = 1 + _SLOTS
_MOST = 128
"""Nodes of a term by which it is known again; and terms that are."""
Form = tuple[object, ...]


def note_number(made: Any) -> None:
    """A function that was given nothing of a batch's rows has made this."""
    if isinstance(made, torch.Tensor) and made.numel() == 1 and (node := node_of(made)) is not None:
        if to_local(made) is not made:  # a part of a sum, which it would take all ranks to know
            return
        note(node, _VALUE, made.detach().clone())


@final
class UnconnectedTerms:
    """What the ranks have found of such terms: whether they count once. fixed: numbers that means
    were multiplied by, whatever the share's size."""

    def __init__(self) -> None:
        self.fixed: set[float] = set()
        self._once: dict[Form, bool] = {}
        self._numbers: MutableMapping[torch.Tensor, int] = WeakIdKeyDictionary()
        self._count = 0

    def once(self, term: Term, node: Any) -> bool:
        """Whether a term is known to count once. Where it is not, it may be compared. node: the
        number that it is, before constants."""
        form = self._form(node) if self._once else ()
        if self._once.get(form):
            return True
        term.apart = node.metadata.get(_VALUE)
        if term.apart is not None and not self._once.get(form, True):
            term.apart = None
        if term.apart is not None:
            term.form = form or self._form(node)
        return False

    def figures(self, terms: Sequence[Term]) -> list[float]:
        """What is told of a loss's terms: which they are, and each one's number."""
        found = _compared(terms)
        names = "|".join(str(each) for term in found for each in term.form[::2])
        told = [float(term.apart) for term in found if term.apart is not None]
        return [float(zlib.crc32(names.encode())), *(told + [-inf] * _SLOTS)[:_SLOTS]]

    def hear(self, terms: Sequence[Term], most: Sequence[float], least: Sequence[float]) -> None:
        """Be told the greatest and the least of each figure: terms that are alike count once."""
        if most[0] != least[0]:
            return
        for slot, term in enumerate(_compared(terms), 1):
            alike = most[slot] == least[slot]
            if not alike or most[slot] != 0.0:  # nothing is alike whatever it is of
                if len(self._once) >= _MOST:  # of what is made anew in each step
                    self._once.clear()
                self._once[term.form] = alike
            if alike:
                term.counts_once()

    def _form(self, node: Any) -> Form:
        """What a term's graph is made of, the parameters too: alike at every step."""
        form: list[object] = []
        left, seen = [node], {node}
        while left and len(form) < _MOST:
            at = left.pop()
            form += [at.name(), self._number(getattr(at, "variable", None))]
            for each in graph.operands(at):
                if each not in seen:
                    seen.add(each)
                    left.append(each)
        return tuple(form)

    def _number(self, leaf: torch.Tensor | None) -> int:
        """One that no other leaf has, as long as there are any: an id goes on to the next, and does
        so on some rank alone."""
        if leaf is None:
            return 0
        if leaf not in self._numbers:
            self._count += 1
            self._numbers[leaf] = self._count
        return self._numbers[leaf]


def _compared(terms: Sequence[Term]) -> list[Term]:
    return [each for each in terms if each.apart is not None][:_SLOTS]
