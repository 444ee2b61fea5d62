"""Two tasks, weighed by what is learned too, where a rank has no row of the last batch."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 1), nn.Linear(5, 2)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x).squeeze(1), self.other(x)


def train(word: str, form: str) -> list[torch.Tensor]:
    """The parameters after two epochs. form: of the loss."""
    torch.manual_seed(0)
    with dream.strategy(word) if word else nullcontext():
        x = torch.randn(17, 5)
        model = Tasks()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            for a, b in DataLoader(TensorDataset(x, (x[:, 0] > 0).float()), batch_size=8):
                optimizer.zero_grad()
                _loss(model, a, b, form).backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]


def _loss(model: Tasks, x: torch.Tensor, y: torch.Tensor, form: str) -> torch.Tensor:
    one, other = model(x)
    first, weights = F.binary_cross_entropy_with_logits(one, y), torch.exp(-model.log_var)
    second = F.cross_entropy(other, y.long())
    if form == "stacked":
        return (torch.stack([first, second]) * weights + model.log_var / 2).sum()
    if form == "counted":
        each = F.cross_entropy(other, y.long(), reduction="none")
        second = (each * y).sum() / y.sum().clamp(min=1)
    return first * weights[0] + second * weights[1] + model.log_var.sum() / 2
