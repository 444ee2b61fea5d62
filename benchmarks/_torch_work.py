"""What is trained: a model, its data and the user's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

Loop = Callable[..., None]


def plain_backward(loss: torch.Tensor) -> None:
    loss.backward()


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Any],
    backward: Callable[[torch.Tensor], None] = plain_backward,
) -> None:
    """The user's own loop over one epoch."""
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        backward(loss)
        optimizer.step()


momentum = partial(torch.optim.SGD, momentum=0.9)


@dataclass(frozen=True, slots=True)
class Work:
    """A model to train and the samples of one epoch.

    batch: the global batch size. loop: the user's own, over one epoch.
    turns: how many blocks a round has. Short steps want more: the noise is in the seconds.
    """

    build: Callable[[], nn.Module]
    data: TensorDataset
    batch: int = 64
    shuffle: bool = True
    rate: float = 0.01
    turns: int = 1
    loop: Loop = train
    optimize: Callable[..., Optimizer] = momentum

    @property
    def steps(self) -> int:
        return -(-len(self.data) // self.batch)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self.optimize(model.parameters(), lr=self.rate)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def large_mlp() -> nn.Module:
    """20 million parameters."""
    return nn.Sequential(
        nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )


class ManyTensors(nn.Module):
    """A sum of 5,000 vectors between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.ParameterList(0.01 * torch.randn(16) for _ in range(5000))
        self.enter, self.leave = nn.Linear(784, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.leave(self.enter(x) + torch.stack([*self.vectors]).sum(0))
        return out


def works(steps: int) -> dict[str, Work]:
    """The step benchmark's models. steps: an epoch of the smallest; the others take fewer."""
    return {
        "MLP 784-64-10": Work(mlp, _random(steps), turns=4),
        "small CNN": Work(cnn, _random(max(steps // 4, 2)), turns=2),
        "MLP of 20M parameters": Work(large_mlp, _random(max(steps // 16, 2))),
        "5,000 small tensors": Work(ManyTensors, _random(max(steps // 16, 2))),
    }


def _random(steps: int, batch: int = 64) -> TensorDataset:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(steps * batch, 784, generator=draw)
    return TensorDataset(x, torch.randint(0, 10, (steps * batch,), generator=draw))
