"""Losses that are taken of parameters too, as a penalty on weights is.

torch adds a number that was computed from cut tensors to one that was not, and calls the sum cut.
Backward then hands cut gradients to ordinary tensors' operations, which refuse them: where such a
gradient leaves the cut tensors, it is made an ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.distributed.tensor import DTensor

from dream._errors import Unsupported

_MADE_ORDINARY = "_ToTorchTensorBackward"
_MADE_CUT = "_FromTorchTensorBackward"


def wrap_backward(backward: Callable[..., None]) -> Callable[..., None]:
    """`torch.autograd.backward` that takes losses of cut and of ordinary tensors together."""

    @wraps(backward)
    def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> None:
        starts = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        with ordinary_again(starts):
            backward(tensors, *args, **kwargs)

    return wrapped


@contextmanager
def ordinary_again(starts: Iterable[Any]) -> Iterator[None]:
    """Backward passes from these hand ordinary gradients to ordinary tensors."""
    with ExitStack() as hooks:
        for start in starts:
            if isinstance(start, DTensor) and start.grad_fn is not None:
                for node in _borders(start.grad_fn):
                    hooks.callback(node.register_prehook(_ordinary).remove)
        yield


def refuse_cut(loss: Any) -> None:
    """Raise where a loss is to be weighed by hand: the weights make the ranks' samples count
    alike, and would make their parts of the penalty count unlike."""
    if isinstance(loss, DTensor):
        raise Unsupported(
            "A loss that is weighed is of samples alone, and this one is of cut parameters too. "
            "Received: strategy.weigh with a loss that a penalty on the parameters was added to. "
            "Weigh the loss first, and add the penalty to what comes back."
        )


def _ordinary(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(g.full_tensor() if isinstance(g, DTensor) else g for g in gradients)


def _borders(start: Node) -> list[Node]:
    """The nodes of ordinary tensors that those of cut ones hand gradients to."""
    cut: dict[Node, bool] = {}
    waiting = [start]
    while waiting:
        node = waiting[-1]
        before = [] if node in cut else [n for n in _before(node) if n not in cut]
        if before:
            waiting += before
            continue
        waiting.pop()
        cut[node] = _gives_cut(node, cut)
    return list(
        {n: None for node, is_cut in cut.items() if is_cut for n in _before(node) if not cut[n]}
    )


def _gives_cut(node: Node, known: dict[Node, bool]) -> bool:
    """Whether what the node computed is cut."""
    variable = getattr(node, "variable", None)  # of a leaf
    if variable is not None:
        return isinstance(variable, DTensor)
    if node.name() in (_MADE_ORDINARY, _MADE_CUT):
        return node.name() == _MADE_CUT
    return any(known[before] for before in _before(node))


def _before(node: Node) -> list[Node]:
    return [before for before, _ in node.next_functions if before is not None]
