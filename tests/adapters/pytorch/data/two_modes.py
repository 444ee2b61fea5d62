"""A search of two levels: a pass over one loader goes on in training, and one over another begins
while the model is in eval mode; the loop calls `train()` within."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

import dream


def train(word: str, trial: str) -> list[float]:
    """The parameters and running statistics after it. trial: what the loop makes of a whole batch;
    "keeps" nothing."""
    torch.manual_seed(0)
    with dream.strategy(word) if word else nullcontext():
        x = torch.randn(91, 5)
        data = TensorDataset(x, (x[:, 0] > 0).long())
        model = nn.Sequential(
            nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.2), nn.Linear(7, 2)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        first = DataLoader(Subset(data, range(46)), batch_size=16, shuffle=True)
        second = DataLoader(Subset(data, range(46, 91)), batch_size=16, shuffle=True)
        others = iter(second)
        for _ in range(3):
            for a, b in first:
                model.train()
                try:
                    c, d = next(others)
                except StopIteration:
                    others = iter(second)
                    c, d = next(others)
                _step(optimizer, F.cross_entropy(model(c), d))
                _step(optimizer, _loss(model, a, b, trial))
            model.eval()
        buffers = (each for each in model.buffers() if each.is_floating_point())
        return [float(each.detach().double().sum()) for each in (*model.parameters(), *buffers)]


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, trial: str) -> torch.Tensor:
    if trial == "sum":
        return 0.1 * F.cross_entropy(model(x * 1.5), y, reduction="sum")
    if trial == "noise":
        x = x + 0.1 * torch.randn_like(x)
    return F.cross_entropy(model(x), y)


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
