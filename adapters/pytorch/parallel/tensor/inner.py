"""Losses that are computed of what a cut layer gives inside its model: each rank has some of its
columns, and would take its mean, or its largest, over those."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.loss.calls import call_at
from dream.adapters.pytorch.private import changeable, note

_COLUMNS = "dream.columns"
_MOST = 2000
"""Nodes of a graph that are looked at, between a loss and the outputs of modules."""


def mark_columns(output: torch.Tensor, layer: str) -> None:
    """Note that a tensor has this rank's columns of a layer's output."""
    if output.grad_fn is not None:
        note(output.grad_fn, _COLUMNS, layer)


def mark_whole(_: nn.Module, __: Any, output: Any) -> Any:
    """A forward hook: all ranks have what a layer gives, an ordinary tensor."""
    if isinstance(output, torch.Tensor) and output.grad_fn is not None:
        output = changeable(output)
        note(output.grad_fn, _COLUMNS, "")
    return output


def refusing_inner_losses(run: Callable[..., None]) -> Callable[..., None]:
    """`torch.autograd.backward` that raises `Unsupported` for a loss of columns."""

    @wraps(run)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        for root in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
            layer = _columns_below(root.grad_fn)
            if layer:
                raise Unsupported(
                    "A layer inside a model that is cut by tensors gives each rank some columns, "
                    "and the loss is computed of them. Received: a loss of what follows "
                    f"{layer!r} in its model. Return it from the model's forward and cut the "
                    "layer by plan={" + repr(layer) + ": 'replicate'}, or use 'sharded' or "
                    "'mirrored'."
                )
        run(tensors, *args, **kwargs)

    return backward


def _columns_below(start: Any) -> str:
    """The layer whose columns a loss comes to by another way than its model's output."""
    left, known = [start], {start}
    for _ in range(_MOST):
        if not left:
            return ""
        node = left.pop()
        if node is None or call_at(node) is not None:
            continue
        layer = node.metadata.get(_COLUMNS)
        if layer:
            return str(layer)
        if layer is not None:
            continue
        for after, _ in node.next_functions:
            if after not in known:
                known.add(after)
                left.append(after)
    return ""
