"""A loss that was read before, known again by a few looks. A graph is read for as long as a small
model needs for a tenth of its step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import torch

from dream.adapters.pytorch import devices
from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import CALL_AT, COUNTS, TrainingCall, call_at
from dream.adapters.pytorch.loss.factors import Weighed
from dream.adapters.pytorch.loss.reading import LossReading
from dream.adapters.pytorch.loss.terms import Term
from dream.adapters.pytorch.private import (
    SAVED_DIM,
    SAVED_HOW,
    SAVED_SELF,
    SAVED_SIZES,
    SAVED_TOTAL,
    saved,
    version_of,
)

_CLOSE = 6
"""Nodes between a loss and an output."""


_Step = tuple[str, Any]
"""A node between a loss and an output: its name, and the dim along which it works, where it
does."""


@final
class Recipe:
    """A loss of one call that was read before: a reduction with nothing between it and an output
    but what works on each sample by itself. All that its reading rests on is held against the graph
    again: the nodes' names and dims, the sizes of what is reduced, the share, and the count."""

    __slots__ = (
        "_count", "_reduced", "_share", "_start", "_steps", "counts", "factor", "overtaken",
        "sent", "terms", "weighed",
    )  # fmt: skip

    def __init__(self, weighed: Weighed, root: torch.Tensor, steps: list[_Step]) -> None:
        (term,) = weighed.terms
        kept = Term(None, term.kind, [], count=term.count)  # holds no graph
        self.terms, self.weighed = [[kept]], replace(weighed, terms=[kept])
        self._share, self._steps = term.share, steps
        self._reduced = _reduced(root.grad_fn)
        self._count = None if term.count is None else float(term.count)
        self.factor = float(weighed.factors[0])
        self.sent = float(weighed.sent) if weighed.late else 0.0
        self.counts = COUNTS if weighed.late else 0.0
        self.overtaken = float(weighed.overtaken)
        self._start = torch.empty(0)

    @classmethod
    def of(cls, reading: LossReading, root: torch.Tensor, call: TrainingCall) -> Recipe | None:
        """That of a loss that has just been read; None where it is not so simple."""
        term, factor = reading.weighed.terms[0], reading.weighed.factors[0]
        if not reading.settled:
            return None
        if len(reading.weighed.terms) != 1 or term.node is not root.grad_fn or not term.plain:
            return None
        if isinstance(factor, torch.Tensor) or not factor or len(reading.bearers) != 1:
            return None
        if root.numel() != 1:
            return None
        kinds = ("once",) if term.share is None else ("mean", "count")
        counted = term.count is None or isinstance(term.count, torch.Tensor)
        if term.kind not in kinds or term.divided or term.floor or not counted:
            return None
        if term.kind == "count" and not reading.weighed.late:
            return None  # the ranks have asked each other, and do so each time
        steps = _way(root.grad_fn, call)
        return None if steps is None else cls(reading.weighed, root, steps)

    def start(self, root: torch.Tensor) -> torch.Tensor:
        """Return the gradient that such a loss starts from. One for all steps, unless a function of
        the script's writes to what it is given."""
        start = self._start
        if start.dtype is not root.dtype or start.shape != root.shape or version_of(start):
            self._start = start = torch.full_like(root, self.factor, requires_grad=False)
        return start

    def fits(self, node: Any, call: TrainingCall) -> bool:
        """Whether a loss of this node is such a one again, of as many things. In one piece: it is
        asked at every step."""
        share = call.share
        if (share is not self._share and share != self._share) or node.metadata:
            return False
        below = node
        for name, dim in self._steps:
            if below.name() != name or getattr(below, SAVED_DIM, None) != dim:
                return False
            after = below.next_functions
            if len(after) > 1 and any(each is not None for each, _ in after[1:]):
                return False
            below = after[0][0]
            if below is None:
                return False
        if below.metadata.get(CALL_AT) is not call:
            return False
        if self._count is None:
            return _reduced(node) == self._reduced
        if getattr(node, SAVED_HOW, None) != self._reduced[1]:
            return False
        total = getattr(node, SAVED_TOTAL, None)
        return (
            total is not None
            and not devices.is_away(total)
            and devices.number_in(total) == self._count
        )


def _way(node: Any, call: TrainingCall) -> list[_Step] | None:
    """The nodes from a loss down to an output of the call."""
    steps: list[_Step] = []
    if graph.reduction_at(node, node.name()) is None:
        return None
    for _ in range(_CLOSE):
        if node is None or node.metadata or (steps and node.name() not in graph.SAMPLEWISE):
            return None
        steps.append((node.name(), saved(node, "dim")))
        node = _below(node)
        if node is not None and call_at(node) is call:
            return steps
    return None


def _below(node: Any) -> Any:
    """The one node that a node's gradient goes to; None where there are several."""
    first, *rest = node.next_functions
    return first[0] if all(after is None for after, _ in rest) else None


def _reduced(node: Any) -> tuple[tuple[int, ...], object]:
    """The sizes of what a node reduces, and how it does."""
    sizes = getattr(node, SAVED_SIZES, None)
    if sizes is not None:
        return tuple(sizes), None
    given = getattr(node, SAVED_SELF, None)
    return () if given is None else tuple(given.shape), getattr(node, SAVED_HOW, None)
