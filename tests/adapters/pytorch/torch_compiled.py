"""Compiled models: the graphs that the compiler makes, without a block and in one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset

import dream


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 3))


class Part(nn.Module):
    """A module of the script's own: the compiler begins with it where the whole is torch's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.back = nn.Linear(6, width), nn.Linear(width, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.as_tensor(self.back(torch.tanh(self.wide(x))))


def train(model: nn.Module, called: Any) -> np.ndarray[Any, Any]:
    """Batches of two sizes, and evaluation after each epoch."""
    draw = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(43, 6, generator=draw), torch.randn(43, 3, generator=draw))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model.train()
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            nn.functional.mse_loss(called(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(data, batch_size=16):
                called(x)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def counted(*, block: bool) -> tuple[dict[str, int], Any]:
    torch._dynamo.reset()
    counters.clear()
    with dream.strategy("mirrored") if block else nullcontext():
        model = net()
        weights = train(model, torch.compile(model, backend="aot_eager"))
    stats, breaks = counters["stats"], counters["graph_break"]
    found = {"graphs": stats["unique_graphs"], "breaks": sum(breaks.values())}
    return found | {"recompiled": sum(counters["recompiles"].values())}, weights


def of_parts(*, block: bool) -> int:
    """Count the graphs of torch's Sequential of such parts, compiled in place, under autocast."""
    torch._dynamo.reset()
    counters.clear()
    with dream.strategy("mirrored", precision="bfloat16") if block else nullcontext() as strategy:
        model = nn.Sequential(nn.LayerNorm(6), Part(4), Part(8), nn.Linear(6, 3))
        model.compile(backend="aot_eager")
        optimizer, x, y = torch.optim.SGD(model.parameters()), torch.randn(8, 6), torch.randn(8, 3)
        if strategy is not None:
            strategy.train_step(model, nn.functional.mse_loss, optimizer)(x, y)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                nn.functional.mse_loss(model(x), y).backward()
    return counters["stats"]["unique_graphs"]


def run_all() -> dict[str, Any]:
    torch.set_num_threads(1)
    parts = {"parts alone": of_parts(block=False), "parts": of_parts(block=True)}
    return parts | {"alone": counted(block=False), "together": counted(block=True)}
