"""Losses that a rank's rows add nothing to: a first 0, to which a loop adds what its samples give.
Other ranks' samples may give something, and wait for this rank's part of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final
from weakref import ref

import torch

from dream.adapters.pytorch.data.earlier_tensors import tensors_named
from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import TrainingCall
from dream.adapters.pytorch.private import note, to_local

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.terms import Term

_NOTHING = "dream.nothing"
"""A key of a graph node's metadata: the call of whose rows a loss has nothing."""
NO_GRAPH = -1.0
"""What a rank tells of such a loss. That is the ranks' mean where all of them have one, as a script
has that lost its graph: on one device torch refuses it."""


def has_graph(root: Any) -> bool:
    return isinstance(root, torch.Tensor) and root.grad_fn is not None


def in_place_of(roots: Sequence[Any], waiting: Sequence[TrainingCall]) -> torch.Tensor | None:
    """A loss of nothing with a graph, for one without; None where it cannot be told whose it is, or
    no rank's rows are parts of a batch. waiting: the calls whose backward has not come."""
    shared = [each for each in waiting if each.share is not None and each.share.parts > 1]
    bearers = {each.bearer for each in waiting}
    if len(roots) != 1 or len(bearers) != 1 or not shared or not _is_number(roots[0]):
        return None
    call = shared[-1]
    trained = [] if call.bearer is None else call.bearer.trained
    if not trained or to_local(trained[0]) is not trained[0]:
        return None
    nothing = trained[0].sum() * 0
    note(nothing.grad_fn, _NOTHING, call)
    return nothing


def call_of_nothing(root: torch.Tensor) -> TrainingCall | None:
    """Return the call for which such a loss stands; None for any other."""
    node: Any = root.grad_fn
    found: TrainingCall | None = node.metadata.get(_NOTHING) if node.metadata else None
    return found


def stands_for_none(node: Any) -> bool:
    """Whether a loss is at this node that has no graph of the script's; None stands for that of a
    loss which is known."""
    return node is not None and bool(node.metadata) and _NOTHING in node.metadata


def less_nothing(terms: list[Term]) -> list[Term]:
    """Leave out of a loss what is times 0, as what a loop begins to add to, beside other parts."""
    nothing = [term for term in terms if term.share is not None and graph.vanishes(term.node)]
    less = {id(term) for term in nothing}
    others = [term for term in terms if id(term) not in less] if nothing else terms
    return others if any(term.share is not None for term in others) else terms


def keep_read(found: Sequence[Term], left: Sequence[Term]) -> None:
    """Have what divides a part that was left out be known none the less, as where the weight of
    one begins at 0. left: the others of what was found."""
    kept = {id(term) for term in left}
    for term in found:
        if id(term) not in kept:
            left[0].read = [*left[0].read, *term.read]


@final
class LentZero:
    """A 0 that a script keeps, and that is its loss where no row adds to it: it has the global
    loss's value until a model is called again."""

    def __init__(self) -> None:
        self.lent: tuple[ref[torch.Tensor], torch.Tensor] | None = None

    def lend(self, root: torch.Tensor) -> None:
        """A loss is to hold the global value. One that has another name too is kept; not one that
        is in a list, where a loop gathers its losses."""
        if sum(x is root for x in tensors_named(items=False)) > 1:
            self.lent = ref(root), root.detach().clone()

    def give_back(self) -> None:
        """A model is called: what was lent is 0 again."""
        if self.lent is not None:
            (held, value), self.lent = self.lent, None
            if (root := held()) is not None:
                root.data.copy_(value)


def _is_number(root: Any) -> bool:
    return isinstance(root, torch.Tensor) and not root.requires_grad and root.numel() == 1
