"""A forward and a backward pass of a Keras model on torch, as `dream port-check` asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


def differentiate(
    call: Callable[[], Sequence[Any]],
    variables: Sequence[Any],
    slopes: Callable[[Sequence[Array]], Sequence[Array]],
) -> list[Array | None]:
    """The gradient by each keras.Variable, None where none flows.

    call: gives the outputs; slopes: from these the gradient of a loss by each, of the same shapes.
    """
    sources = [variable.value for variable in variables]
    outputs = list(call())
    found = slopes([_array(x) for x in outputs])
    flowing = [
        (x, torch.from_numpy(np.array(s)).to(x))
        for x, s in zip(outputs, found, strict=True)
        if x.requires_grad
    ]
    if not sources or not flowing:
        return [None] * len(sources)
    xs, grads = zip(*flowing, strict=True)
    gradients = torch.autograd.grad(xs, sources, grads, allow_unused=True)
    return [None if g is None else _array(g) for g in gradients]


def _array(x: torch.Tensor) -> Array:
    plain = x.detach().cpu()
    return np.array(plain.float() if plain.dtype == torch.bfloat16 else plain)
