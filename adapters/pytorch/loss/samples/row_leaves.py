"""Tensors of a script's own that hold rows of its batch and want a gradient: adversarial examples,
samples of a chain, codes that are found for a batch.

A backward pass computes gradients as many times as large as there are ranks, over which those of
parameters are averaged. What holds a rank's own rows is averaged with nobody's: its gradient is
divided, and is then its rows of the global loss's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, final
from weakref import ref

import torch

from dream.adapters.pytorch.loss.calls import CALL_AT
from dream.adapters.pytorch.private import tree_leaves
from dream.data.partition import Share


@final
class RowLeaves:
    """Tensors with rows of a batch that modules were called with, until their backward has come."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[ref[torch.Tensor], int]] = {}
        self._first: dict[int, tuple[ref[torch.Tensor], Share]] = {}
        self._over = False

    def __contains__(self, x: object) -> bool:
        held = self.held.get(id(x))
        return held is not None and held[0]() is x

    def note(self, share: Share | None, args: Sequence[Any]) -> None:
        """A module is called in training. share: of the batch that its inputs are of."""
        if share is None or share.parts == 1:
            return
        for x in args:
            if isinstance(x, torch.Tensor):
                if x.requires_grad:
                    self._note(share, x)
            elif isinstance(x, (list, tuple, dict)):
                self.note(share, [y for y in tree_leaves(x) if isinstance(y, torch.Tensor)])

    def around(self, run: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward`, by which these get their rows' own gradients."""

        @wraps(run)
        def backward(*args: Any, **kwargs: Any) -> None:
            if not self.held:
                run(*args, **kwargs)
                return
            with self._divided():
                run(*args, **kwargs)

        return backward

    @contextmanager
    def _divided(self) -> Iterator[None]:
        leaves = [(leaf(), parts) for leaf, parts in self.held.values()]
        handles = [
            leaf.register_hook(partial(_part, parts))
            for leaf, parts in leaves
            if leaf is not None and leaf.requires_grad
        ]
        try:
            yield
        finally:
            self._over = True
            for handle in handles:
                handle.remove()

    def _note(self, share: Share, x: torch.Tensor) -> None:
        if self._over:
            self._over = False
            self.held.clear()
        for leaf in [x] if x.grad_fn is None else leaves_of(x.grad_fn, calls=False):
            of_rows = leaf.dim() and leaf.shape[0] == share.count
            if of_rows and not isinstance(leaf, torch.nn.Parameter) and self._is_new(leaf, share):
                self.held[id(leaf)] = ref(leaf), share.parts

    def _is_new(self, leaf: torch.Tensor, share: Share) -> bool:
        """Tell whether it was made for this batch: one that stays is trained, and happens to be as
        long."""
        known = self._first.get(id(leaf))
        if known is None or known[0]() is not leaf:
            self._first = {k: each for k, each in self._first.items() if each[0]() is not None}
            known = self._first[id(leaf)] = ref(leaf), share
        return known[1] is share


def _part(parts: int, gradient: torch.Tensor) -> torch.Tensor:
    return gradient / parts


def leaves_of(node: Any, *, calls: bool = True) -> Iterator[torch.Tensor]:
    """Yield the tensors that a graph starts from, in an order that is the same on every rank.
    calls: whether past the outputs of modules, too."""
    left, seen = [node], set()
    while left:
        at = left.pop()
        if at is None or at in seen or not (calls or CALL_AT not in at.metadata):
            continue
        seen.add(at)
        variable = getattr(at, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable
        left.extend(after for after, _ in at.next_functions)
