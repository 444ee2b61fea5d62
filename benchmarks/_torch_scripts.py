"""The digits run as scripts train that do not take the mean over samples: loops and models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import _digits
import torch
from _torch_work import Loop, momentum, plain_backward, train
from torch import nn
from torch.nn import functional as F
from torch.optim import LBFGS, Optimizer

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Script:
    """dropout: of the hidden layer. optimize: makes the optimizer. batch: the global one."""

    loop: Loop = train
    dropout: float = 0.0
    batch: int = _digits.BATCH
    optimize: Callable[..., Optimizer] = momentum


def by(loss: Loss) -> Loop:
    """The usual loop with a loss of its own."""

    def loop(
        model: nn.Module,
        optimizer: Optimizer,
        batches: Iterable[Any],
        backward: Callable[[torch.Tensor], None] = plain_backward,
    ) -> None:
        for x, y in batches:
            optimizer.zero_grad()
            backward(loss(model(x), y))
            optimizer.step()

    return loop


def with_closure(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Any],
    backward: Callable[[torch.Tensor], None] = plain_backward,
) -> None:
    """As LBFGS wants it: it asks for the loss as often as it likes."""
    for x, y in batches:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            backward(loss)
            return loss

        optimizer.step(closure)


SCRIPTS = {
    "mean": Script(),
    "sum": Script(by(lambda out, y: 0.02 * F.cross_entropy(out, y, reduction="sum"))),
    "token mean": Script(by(partial(F.cross_entropy, ignore_index=9))),
    "dropout": Script(dropout=0.2),
    "LBFGS": Script(with_closure, batch=450, optimize=partial(LBFGS, max_iter=2)),
}
"""By what is unlike the mean over samples: a sum, a mean over those that are not ignored, random
numbers in the model, and an optimizer that computes the loss several times: on batches of 64 it is
chaos (on one device, first weights that differ by 1e-7 end 2 apart), on those of 450 it is not."""
