"""A rank of `unequal.py`: OUT OPTIONS SLOWER STEPS."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

WIDTH, BATCH = 256, 128


class Repeated(nn.Module):
    """Computes a block so many times, of which one counts: its numbers are those of once."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.block(x)
        for _ in range(self.times - 1):
            first = first + 0.0 * self.block(x)
        return first


def main() -> None:
    out, options, slower, steps = sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:])
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(BATCH * steps, WIDTH))
    with dream.strategy("mirrored", **options) as strategy:
        rank = strategy.topology.rank
        model = nn.Sequential(*(Repeated(slower if rank else 1) for _ in range(4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        begin = 0.0
        for number, (x,) in enumerate(DataLoader(data, BATCH)):
            if number == steps // 2:
                begin = perf_counter()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        seconds = (perf_counter() - begin) / (steps - steps // 2)
    if rank == 0:
        Path(out).write_text(str(seconds))


main()
