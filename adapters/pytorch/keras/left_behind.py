"""What a step on torch leaves behind beside variables: gradients, and a module's plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def tensors_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, parameters have no gradients, and what modules hold may be written to."""
    parameters = list({id(p): p for module in modules for p in module.parameters()}.values())
    gradients = [p.grad for p in parameters]
    held = [x for module in modules for x in vars(module).values()]
    tensors = [(x, x.detach().clone()) for x in held if type(x) is torch.Tensor]
    generators = [(x, x.get_state()) for x in held if isinstance(x, torch.Generator)]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.data.copy_(value)
        for generator, state in generators:
            generator.set_state(state)
