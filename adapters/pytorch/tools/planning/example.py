"""Take what the user's function gives: a model, perhaps a loss, and an example batch; and make the
optimizers and precisions that `dream plan` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError
from dream.tools.plan.asked import Optimizer

HOW = (
    "Return (model, batch) or (model, loss, batch): batch is (input, ..., target) as a loader "
    "gives it, or the input alone; loss takes (prediction, target)"
)


@final
@dataclass(frozen=True, slots=True)
class Example:
    """A model without values, with a batch and a loss.

    samples: of the batch, which is (input, ..., target).
    """

    model: nn.Module
    loss: Callable[..., Any]
    named: str
    batch: tuple[Any, ...]
    samples: int

    def batch_of(self, samples: int) -> tuple[Any, ...]:
        """Return the same with another number of samples, of any values that the example's first
        has."""
        return tree_map(lambda x: _sized(x, self.samples, samples), self.batch)  # type: ignore[no-any-return]


def example(given: Any) -> Example:
    parts = given if isinstance(given, tuple) else (given,)
    if not isinstance(parts[0], nn.Module) or len(parts) not in (2, 3):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise ConfigurationError(
            f"What the function returns is not enough. Received: {kinds}. {HOW}."
        )
    *rest, data = parts[1:]
    batch = tuple(data) if isinstance(data, (tuple, list)) else (data,)
    first = next((x for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()), None)
    if first is None:
        raise ConfigurationError(
            f"There is no tensor in the batch. Received: {type(data).__name__}. {HOW}."
        )
    loss, named = (rest[0], "the given one") if rest else _guessed(batch)
    return Example(parts[0], loss, named, batch, len(first))


def _guessed(batch: tuple[Any, ...]) -> tuple[Callable[..., Any], str]:
    """Cross-entropy for class numbers, mean squared error for other targets; without a target the
    mean of the output."""
    if len(batch) < 2:
        return mean_loss, "mean of the output"
    target = batch[-1]
    if isinstance(target, torch.Tensor) and not target.is_floating_point():
        return class_loss, "cross-entropy"
    return squared_loss, "mean squared error"


def mean_loss(output: Any, _: Any = None) -> torch.Tensor:
    return _first(output).float().mean()


def class_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Classes are the last dim, or dim 1 where the target has that shape."""
    logits = _first(output)
    if logits.dim() == target.dim() + 1 and logits.shape[:-1] == target.shape:
        logits, target = logits.flatten(0, -2), target.flatten()
    return F.cross_entropy(logits, target)


def squared_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(_first(output), target)


def _first(output: Any) -> torch.Tensor:
    return next(x for x in tree_leaves(output) if isinstance(x, torch.Tensor))


def _sized(x: Any, before: int, after: int) -> Any:
    if not isinstance(x, torch.Tensor) or not x.dim() or len(x) != before:
        return x
    return x[:1].expand(after, *x.shape[1:]).contiguous()


_AUTOCAST = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}


def make_optimizer(
    name: Optimizer, parameters: Iterable[nn.Parameter], *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """fused: all parameters at once, as torch does on GPUs."""
    if name in ("sgd", "momentum"):
        momentum = 0.9 if name == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=0.01, momentum=momentum, foreach=fused)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(parameters, foreach=fused)


def cast_model(model: nn.Module, precision: str) -> nn.Module:
    """Cast parameters and buffers to half precision where nothing is mixed, shared ones still
    shared. `Module.to` would give tensors without values new contents, which they refuse."""
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


def precision_context(precision: str) -> AbstractContextManager[object]:
    if precision in _AUTOCAST:
        return torch.autocast("cpu", _AUTOCAST[precision])
    return nullcontext()
