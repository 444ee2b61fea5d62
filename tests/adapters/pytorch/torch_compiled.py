"""Compiled models: the graphs that the compiler makes, without a block and in one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset

import dream

Made = Callable[[], tuple[nn.Module, Any]]


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 3))


def of_a_model() -> tuple[nn.Module, Any]:
    model = net()
    return model, torch.compile(model, backend="aot_eager")


def in_place() -> tuple[nn.Module, Any]:
    model = net()
    model.compile(backend="aot_eager")
    return model, model


KINDS: tuple[Made, ...] = (of_a_model, in_place)


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


def counted(make: Made, *, block: bool, before: bool) -> tuple[dict[str, int], Any]:
    """before: the model is made and compiled before the block."""
    torch._dynamo.reset()
    counters.clear()
    made = make() if before else None
    with dream.strategy("mirrored") if block else nullcontext():
        weights = train(*(made or make()))
    stats, breaks = counters["stats"], counters["graph_break"]
    found = {"graphs": stats["unique_graphs"], "breaks": sum(breaks.values())}
    return found | {"recompiled": sum(counters["recompiles"].values())}, weights


def run_all() -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {}
    for make in KINDS:
        found[make.__name__] = counted(make, block=False, before=False)
        for before in (False, True):
            name = f"{make.__name__} {'before' if before else 'in'} the block"
            found[name] = counted(make, block=True, before=before)
    return found
