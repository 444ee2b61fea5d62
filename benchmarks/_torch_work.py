"""What the step benchmark trains: three models, random data, one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

BATCH = 64
"""The global batch size."""


@dataclass(frozen=True, slots=True)
class Work:
    """A model to train and the samples of one epoch.

    build: makes the model. shape: of one sample. steps: global batches an epoch.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    steps: int

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        return self.build()

    def data(self) -> TensorDataset:
        draw = torch.Generator().manual_seed(2)
        count = self.steps * BATCH
        x = torch.randn(count, *self.shape, generator=draw)
        return TensorDataset(x, torch.randint(0, 10, (count,), generator=draw))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
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


def works(steps: int) -> dict[str, Work]:
    """The models by name. steps: an epoch's length for the smallest; the others take fewer."""
    return {
        "MLP 784-64-10": Work(mlp, (784,), steps),
        "small CNN": Work(cnn, (1, 28, 28), max(steps // 4, 2)),
        "MLP of 20M parameters": Work(large_mlp, (784,), max(steps // 16, 2)),
    }


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


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
