"""A rank of a model that calls one expert or the other, as its own rows say: sharding_experts.py
SIZE BATCHES, where SIZE is the second expert's width, the first one's being 6, and rows of the
first BATCHES say alike on every rank."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream


class Experts(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, each), nn.Tanh(), nn.Linear(each, 6)) for each in (6, width)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.experts[int(x[0, 0] > 0)](x))
        return out


def main() -> None:
    width, alike = map(int, sys.argv[1:])
    torch.manual_seed(5)
    batches = alike + 2
    x = torch.randn(8 * batches, 6)
    x[:, 0] = torch.tensor([1.0, -1.0]).repeat_interleave(4).repeat(batches)
    x[:, 0] *= torch.tensor([1.0, -1.0]).repeat(4 * batches)  # whichever rows a rank has
    x[: 8 * alike, 0] = 1.0
    data = TensorDataset(x, torch.randint(3, (len(x),)))
    with dream.strategy("sharded"):
        model = Experts(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows, classes in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            F.cross_entropy(model(rows), classes).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
