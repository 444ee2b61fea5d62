"""How much memory a rank takes to train, by how its model came to be distributed."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

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
