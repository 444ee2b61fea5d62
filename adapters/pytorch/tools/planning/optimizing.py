"""Optimizers and precisions by the names that `dream plan` takes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from dream.tools.plan.asked import Optimizer

_AUTOCAST = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}


def optimizer(
    name: Optimizer, parameters: Iterable[nn.Parameter], *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """fused: all parameters at once, as torch does on GPUs."""
    if name in ("sgd", "momentum"):
        momentum = 0.9 if name == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=0.01, momentum=momentum, foreach=fused)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(parameters, foreach=fused)


def cast(model: nn.Module, precision: str) -> nn.Module:
    """Parameters and buffers in half precision where nothing is mixed, shared ones still shared.
    `Module.to` would give tensors without values new contents, which they refuse."""
    if precision != "bfloat16":
        return model
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, x in own:
            if x.is_floating_point():
                setattr(module, name, made.setdefault(id(x), _halved(x)))
    return model


def _halved(x: torch.Tensor) -> torch.Tensor:
    half = x.detach().to(torch.bfloat16)
    if isinstance(x, nn.Parameter):
        return nn.Parameter(half, requires_grad=x.requires_grad)
    return half


def cast_batch(x: torch.Tensor, precision: str) -> torch.Tensor:
    return x.to(torch.bfloat16) if precision == "bfloat16" and x.is_floating_point() else x


def computing(precision: str) -> AbstractContextManager[object]:
    if precision in _AUTOCAST:
        return torch.autocast("cpu", _AUTOCAST[precision])
    return nullcontext()
