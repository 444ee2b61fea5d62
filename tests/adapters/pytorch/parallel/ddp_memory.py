"""How much memory a rank takes to train, by how its model came to be distributed."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


def grown(way: str) -> dict[str, float]:
    """Bytes that training takes beside the model, in gradients of the model. Nothing is freed by a
    collector meanwhile."""
    gc.disable()
    torch.set_num_threads(1)
    x = torch.ones(4, 1024)
    with dream.strategy("mirrored", framework="torch", reduction="gloo") as strategy:
        F.mse_loss(nn.Linear(1024, 1024)(x), x).backward()  # what is loaded on the way
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        before = _resident()
        if way == "prepared":
            model, optimizer = strategy.prepare(model, optimizer)
        elif way == "after a loop":
            F.mse_loss(model(x), x).backward()
            optimizer.step()
        step: Any = strategy.train_step(model, F.mse_loss, optimizer)
        for _ in range(3):
            step(x, x)
        bytes_ = sum(p.numel() * p.element_size() for p in model.parameters())
        return {"gradients": (_resident() - before) / bytes_}


def _resident() -> int:
    """Less what the allocator keeps of what was given back, which hangs on when threads come."""
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def living() -> list[int]:
    """Count the models in memory after each of several that are trained in a block, by an error by
    hand, whose output the first passes keep."""
    counts = []
    torch.manual_seed(0)
    with dream.strategy("mirrored", framework="torch"):
        for _ in range(4):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 1)), batch_size=4):
                optimizer.zero_grad()
                ((model(x) - y) ** 2).mean().backward()
                optimizer.step()
            gc.collect()
            counts.append(sum(isinstance(each, nn.Sequential) for each in gc.get_objects()))
    return counts


def folds(word: str) -> list[float]:
    """Losses of models that are trained one after the other. One rank lets go of those of before,
    and another does not."""
    gc.disable()
    torch.manual_seed(0)
    losses = []
    with dream.strategy(word, framework="torch") if word else nullcontext():
        for fold in range(4):
            norm = nn.BatchNorm1d(6 if fold < 2 else 7)
            model = nn.Sequential(
                nn.Linear(4, norm.num_features), norm, nn.Linear(norm.num_features, 1)
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
            for x, y in DataLoader(data, batch_size=4, shuffle=True):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            del model, optimizer, loss
            if os.environ.get("RANK") == "1":
                gc.collect()
    gc.enable()
    return losses
