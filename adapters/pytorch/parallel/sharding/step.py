"""Losses that are taken of cut parameters too.

torch adds a number that was computed from DTensors to one that was not, and gives a DTensor.
Backward then hands DTensor gradients to ordinary tensors' operations, which refuse them: where such
a gradient leaves the DTensors, it is made an ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.distributed.tensor import DTensor

from dream._errors import Unsupported
from dream.adapters.pytorch.loss.graph import operands
from dream.adapters.pytorch.private import gives_dtensor


def starting_anywhere(backward: Callable[..., None]) -> Callable[..., None]:
    """Have `backward` take losses of DTensors and of ordinary tensors together."""

    @wraps(backward)
    def from_any(tensors: Any, *args: Any, **kwargs: Any) -> None:
        starts = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        with ordinary_gradients(starts):
            try:
                backward(tensors, *args, **kwargs)
            except RuntimeError as error:
                if "mixed torch.Tensor and DTensor" not in str(error):
                    raise
                raise Unsupported(
                    "A backward pass computes with parameters in shards and ordinary tensors "
                    "together, as a function that differentiates by itself does (an adjoint). "
                    f"Received: {error} Let autograd differentiate it, or use 'mirrored'."
                ) from error

    return from_any


@contextmanager
def ordinary_gradients(starts: Iterable[Any]) -> Iterator[None]:
    """Have backward passes from these hand ordinary gradients to ordinary tensors, and to cut
    parameters such as are cut alike: torch leaves one whole whose rows are fewer than the ranks."""
    with ExitStack() as hooks:
        for start in starts:
            if isinstance(start, DTensor) and start.grad_fn is not None:
                cut = _cut(start.grad_fn)
                for node in _borders(cut):
                    hooks.callback(node.register_prehook(_ordinary).remove)
                for node in _leaves(cut):
                    hooks.callback(node.register_prehook(_laid_out_like(node)).remove)
        yield


def refuse_dtensor(loss: Any) -> None:
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


def _laid_out_like(leaf: Node) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    parameter: DTensor = leaf.variable  # type: ignore[attr-defined]
    mesh, placements = parameter.device_mesh, parameter.placements

    def laid_out(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            g.redistribute(mesh, placements) if isinstance(g, DTensor) else g for g in gradients
        )

    return laid_out


def _leaves(cut: Mapping[Node, bool]) -> list[Node]:
    """Find the nodes of cut parameters."""
    return [node for node, is_cut in cut.items() if is_cut and hasattr(node, "variable")]


def _borders(cut: Mapping[Node, bool]) -> list[Node]:
    """Find the nodes of ordinary tensors that those of DTensors hand gradients to."""
    return list(
        {n: None for node, is_cut in cut.items() if is_cut for n in operands(node) if not cut[n]}
    )


def _cut(start: Node) -> dict[Node, bool]:
    """Tell of each node before this one whether it computed a DTensor."""
    cut: dict[Node, bool] = {}
    waiting = [start]
    while waiting:
        node = waiting[-1]
        before = [] if node in cut else [n for n in operands(node) if n not in cut]
        if before:
            waiting += before
            continue
        waiting.pop()
        cut[node] = _gives_cut(node, cut)
    return cut


def _gives_cut(node: Node, known: dict[Node, bool]) -> bool:
    """Tell whether the node computed a DTensor."""
    variable = getattr(node, "variable", None)  # of a leaf
    if variable is not None:
        return isinstance(variable, DTensor)
    gives = gives_dtensor(node)
    return gives if gives is not None else any(known[before] for before in operands(node))
