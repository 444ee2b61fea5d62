"""How many functions of dream's run in a step, once a loop's first steps are over."""

from __future__ import annotations

import cProfile
import pstats
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

FIRST, STEPS = 14, 20


def calls_of_dream(strategy: str, way: str) -> tuple[float, int]:
    """Those of a step, on average, and modes that follow torch's functions in it. way: 'loader', or
    'read before' for batches that a list holds, or 'train_step' for these too."""
    torch.manual_seed(0)
    profile, modes = cProfile.Profile(), 0
    with dream.strategy(strategy, framework="torch") as made:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = TensorDataset(torch.randn(160, 8), torch.randint(4, (160,)))
        loader = DataLoader(data, batch_size=4)
        step = made.train_step(model, F.cross_entropy, optimizer)

        def by_hand(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        for at, (x, y) in enumerate(loader if way == "loader" else [*loader]):
            if at == FIRST:
                profile.enable()
            if at == FIRST + STEPS:
                profile.disable()
                modes = torch._C._len_torch_function_stack()
            (step if way == "train_step" else by_hand)(x, y)
    return _calls(profile) / STEPS, modes


def _calls(profile: cProfile.Profile) -> int:
    stats: Any = pstats.Stats(profile)
    of_dream = "/dream/", "/adapters/"
    return sum(v[1] for k, v in stats.stats.items() if any(each in k[0] for each in of_dream))


def all_ways(strategy: str) -> dict[str, tuple[float, int]]:
    return {way: calls_of_dream(strategy, way) for way in ("loader", "read before", "train_step")}


def looks_after_the_block() -> int:
    """How often torch has looked at what backward passes start from, in as many steps of a loop
    that goes on after its block."""
    torch.manual_seed(0)
    with dream.strategy("mirrored", framework="torch"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(
            TensorDataset(torch.randn(160, 8), torch.randint(4, (160,))), batch_size=4
        )
    profile = cProfile.Profile()
    for at, (x, y) in enumerate(loader):
        if at == FIRST:
            profile.enable()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    profile.disable()
    stats: Any = pstats.Stats(profile)
    return sum(v[1] for k, v in stats.stats.items() if k[2] == "_make_grads")
