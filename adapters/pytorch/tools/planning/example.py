"""What the user's function gives: a model, perhaps a loss, and an example batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError

HOW = (
    "Return (model, batch) or (model, loss, batch): batch is (input, ..., target) as a loader "
    "gives it, or the input alone; loss takes (prediction, target)"
)


@final
@dataclass(frozen=True, slots=True)
class Example:
    """samples: of the batch, which is (input, ..., target)."""

    model: nn.Module
    loss: Callable[..., Any]
    named: str
    batch: tuple[Any, ...]
    samples: int

    def batch_of(self, samples: int) -> tuple[Any, ...]:
        """The same with another number of samples, of any values that the example's first has."""
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
