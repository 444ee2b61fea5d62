"""What of torch's autograd is private, and read or called at every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch.autograd.graph import _engine_run_backward

_backward = torch.autograd.backward


@final
class Starts(tuple[torch.Tensor, ...]):
    """What dream starts a backward pass from, or the gradients there: of plain tensors, one for
    each, of its shape and dtype."""

    __slots__ = ()


def quick(backward: Callable[..., None]) -> Callable[..., None]:
    """Return `torch.autograd.backward` which starts at once from `Starts`. It looks at what it is
    given for as long as the smallest layer's pass takes."""
    if backward is not _backward:
        return backward

    @wraps(backward)
    def run(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        if type(tensors) is Starts and type(grad_tensors) is Starts and not (args or kwargs):
            how = (False, False, ())  # retain_graph, create_graph, inputs
            _engine_run_backward(
                tensors, grad_tensors, *how, allow_unreachable=True, accumulate_grad=True
            )
        else:
            backward(tensors, grad_tensors, *args, **kwargs)

    return run


def viewed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that another is a view of; None where it is none."""
    return tensor._base


def mapped(x: torch.Tensor) -> torch.Tensor | None:
    """Return what torch.func.vmap maps by its first dim, where this stands for a row of it."""
    functorch = torch._C._functorch
    if functorch.is_batchedtensor(x) and functorch.maybe_get_bdim(x) == 0:
        return functorch.get_unwrapped(x)
    return None
