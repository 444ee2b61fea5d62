"""A rank of a model whose second head is called where some of a rank's own rows are for it."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(len(x), 1)
        for number, head in enumerate(self.heads):
            chosen = task == number
            if chosen.any():
                out[chosen] = head(x[chosen])
        return out


def main() -> None:
    torch.manual_seed(5)
    tasks = torch.tensor([0, 1, 0, 0] * 4)  # the second is of one rank's rows alone
    data = TensorDataset(torch.randn(16, 6), tasks, torch.randn(16, 1))
    with dream.strategy("sharded"):
        model = Heads()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, task, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x, task), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
