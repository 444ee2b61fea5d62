"""A rank of a model that calls one expert or the other, as its own rows say."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(2)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.experts[int(x[0, 0] > 0)](x))
        return out


def main() -> None:
    torch.manual_seed(5)
    x = torch.randn(16, 6)
    x[:, 0] = torch.tensor([1.0, -1.0]).repeat_interleave(4).repeat(2)
    x[:, 0] *= torch.tensor([1.0, -1.0]).repeat(8)  # whichever rows a rank has
    data = TensorDataset(x, torch.randint(3, (16,)))
    with dream.strategy("sharded"):
        model = Experts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows, classes in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            F.cross_entropy(model(rows), classes).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
