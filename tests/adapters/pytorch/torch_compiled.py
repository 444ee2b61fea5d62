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


def train(model: nn.Module, called: Any) -> np.ndarray[Any, Any]:
    """Batches of two sizes, and evaluation after each epoch."""
    draw = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(43, 6, generator=draw), torch.randn(43, 3, generator=draw))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
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


def run_all() -> dict[str, Any]:
    torch.set_num_threads(1)
    return {"alone": counted(block=False), "together": counted(block=True)}
