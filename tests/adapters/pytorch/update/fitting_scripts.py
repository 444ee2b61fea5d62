"""Trainings on ranks whose memory runs out, and what they end at."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from little_memory import LEFT, ROW, Asks, little_memory
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


class Net(nn.Module):
    """Dropout, a block that is left out by Python's dice, a counter, and weights that power
    iteration normalises. called: training calls; hungry: the first call that asks for memory."""

    def __init__(self, each: int, where: str, hungry: int = 0, wide: int = 33) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(7, wide), nn.Linear(wide, 3)
        self.block = nn.utils.spectral_norm(nn.Linear(wide, wide))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.each, self.where, self.hungry, self.called = each, where, hungry, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.called += 1
        self.count += 1
        hidden = F.dropout(torch.tanh(self.first(x)), 0.3, self.training)
        if random.random() < 0.7:
            hidden = hidden + F.dropout(self.block(hidden), 0.2, self.training)
        made: torch.Tensor = self.last(hidden)
        each = self.each if self.called > self.hungry else 0
        return Asks.apply(made, each, self.where)


def trained(
    limited: Sequence[int] | None,
    where: str = "forward",
    hungry: int = 0,
    samples: int = 45,
    wide: int = 33,
    **options: Any,
) -> dict[str, Any]:
    """Uneven batches of two epochs, some words of each row left out. limited: ranks that have
    little memory; None for a training without `accumulate="auto"`."""
    options = options if limited is None else {"accumulate": "auto"} | options
    with dream.strategy("mirrored", **options) as strategy:
        torch.manual_seed(0)
        random.seed(3)
        targets = torch.randint(3, (samples,))
        targets[::4] = -100
        data = TensorDataset(torch.randn(samples, 7), targets)
        model = Net(0 if limited is None else ROW, where, hungry, wide)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        few = limited is not None and strategy.topology.rank in limited
        with little_memory() if few else nullcontext():
            losses = [
                float(step(x, y))
                for _ in range(2)
                for x, y in DataLoader(data, batch_size=16, shuffle=True)
            ]
        drawn = [torch.rand(()).item(), random.random()]
    return {
        "state": {name: value.tolist() for name, value in model.state_dict().items()},
        "losses": losses, "drawn": drawn, "called": model.called,
    }  # fmt: skip


def everything() -> dict[str, Any]:
    """Of every rank, or of the last alone, memory runs out."""
    last = int(os.environ.get("WORLD_SIZE", "1")) - 1
    found = {"plain": trained(None), "with room": trained([])}
    for where in ("forward", "backward"):
        found[f"in {where}"] = trained(range(last + 1), where)
        found[f"in {where} on the last rank"] = trained([last], where)
        found[f"in {where} on the last rank, later"] = trained([last], where, 4)
    found["half precision"] = trained(None, precision="bfloat16")
    found["half precision on the last rank"] = trained([last], precision="bfloat16")
    found["whole batches"] = whole_batches(None)
    found["whole batches on the last rank"] = whole_batches([last])
    return found


OTHERS: dict[str, dict[str, Any]] = {
    "a rank without a row": {"samples": 33},
    "buckets": {"bucket_mb": 0.001},
    "large layers": {"wide": 560},
    "shares": {"shares": [3, 1]},
    "shares by speed": {"shares": "auto"},
    "recompute": {"recompute": True},
    "clip_norm": {"clip_norm": 0.05},
    "float16": {"precision": "float16"},
}


def others() -> dict[str, Any]:
    found = {}
    for name, options in OTHERS.items():
        found[name] = {
            "plain": trained(None, **options),
            "out": trained([0], "backward", **options),
        }
    return found


def over_gloo() -> dict[str, Any]:
    plain = trained(None, reduction="gloo")
    return {"plain": plain, "on the last rank": trained([1], "backward", reduction="gloo")}


def whole_batches(limited: Sequence[int] | None) -> dict[str, Any]:
    """Batches of no loader, whole on every rank."""
    options = {} if limited is None else {"accumulate": "auto"}
    with dream.strategy("mirrored", **options) as strategy:
        torch.manual_seed(0)
        random.seed(3)
        model = Net(0 if limited is None else ROW, "backward")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        few = limited is not None and strategy.topology.rank in limited
        with little_memory() if few else nullcontext():
            losses = [float(step(torch.randn(9, 7), torch.randint(3, (9,)))) for _ in range(10)]
    return {
        "state": {name: value.tolist() for name, value in model.state_dict().items()},
        "losses": losses, "drawn": [torch.rand(()).item()], "called": model.called,
    }  # fmt: skip


def one_row_is_too_much() -> list[str]:
    """What a rank says whose memory one row is too much for, or that hears of it."""
    with dream.strategy("mirrored", accumulate="auto") as strategy:
        model = Net(LEFT + ROW, "backward")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        few = strategy.topology.rank + 1 == strategy.topology.world_size
        try:
            with little_memory() if few else nullcontext():
                step(torch.randn(4, 7), torch.randint(3, (4,)))
        except Exception as error:
            return [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
    return []


class Codebook(nn.Module):
    """Follows its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 3)
        self.register_buffer("mean", torch.zeros(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(0), 0.1)
        made: torch.Tensor = Asks.apply(self.inner(x - self.mean), ROW, "forward")
        return made


def codebook() -> str:
    with dream.strategy("mirrored", accumulate="auto") as strategy:
        model = Codebook()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        try:
            with little_memory():
                step(torch.randn(8, 7), torch.randint(3, (8,)))
        except dream.Unsupported as error:
            return str(error)
    return ""


def sharded() -> str:
    try:
        with dream.strategy("sharded", accumulate="auto"):
            return ""
    except dream.Unsupported as error:
        return str(error)
