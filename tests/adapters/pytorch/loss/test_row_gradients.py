"""Gradients of a batch's own rows, by which a loop moves them: attacks, chains, codes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from beside_plain import hold, in_cells
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow
Energy = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def summed(net: Any, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return ((net(z) - x) ** 2).sum()


def mean(net: Any, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return 100 * ((net(2 * z) - x) ** 2).mean()


def moved(net: Any, x: torch.Tensor, energy: Energy) -> torch.Tensor:
    z = x.clone().requires_grad_()
    for _ in range(3):
        energy(net, z, x).backward()
        assert z.grad is not None
        z = (z - 0.1 * z.grad).detach().requires_grad_()
    return z.detach()


def in_place(net: Any, x: torch.Tensor, energy: Energy) -> torch.Tensor:
    z = x.clone().requires_grad_()
    for _ in range(3):
        energy(net, z, x).backward()
        with torch.no_grad():
            z -= 0.1 * z.grad  # type: ignore[operator]
        z.grad = None
    return z.detach()


def frozen(net: Any, x: torch.Tensor, energy: Energy) -> torch.Tensor:
    net.requires_grad_(False)
    z = moved(net, x, energy)
    net.requires_grad_(True)
    return z


def codes(net: Any, x: torch.Tensor, energy: Energy) -> torch.Tensor:
    z = torch.zeros(len(x), 8, requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=0.1, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        energy(net, z, x).backward()
        optimizer.step()
    return z.detach()


WAYS = {each.__name__: each for each in (moved, in_place, frozen, codes)}
ENERGIES = {each.__name__: each for each in (summed, mean)}


def trained(word: str) -> dict[str, float]:
    """By way and energy, what a net has learned from rows that were moved so."""
    with dream.strategy(word) if word else nullcontext():
        return {
            f"{way} {energy} {given}": learned(WAYS[way], ENERGIES[energy], given)
            for way in WAYS
            for energy in ENERGIES
            for given in ("own", "given")
        }


def learned(way: Callable[..., torch.Tensor], energy: Energy, given: str) -> float:
    """given: whether rows are moved by a net that is not trained, or by the own one."""
    torch.manual_seed(3)
    net, fixed = (nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))
    fixed.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    by = net if given == "own" or way is frozen else fixed
    for _ in range(2):
        for (x,) in DataLoader(TensorDataset(torch.randn(14, 8)), batch_size=8, shuffle=True):
            z = way(by, x, energy)
            optimizer.zero_grad()
            ((net(z) - x) ** 2).mean().backward()
            optimizer.step()
    return float(sum(p.detach().double().abs().sum() for p in net.parameters()))


@in_cells
def test_rows_move_by_their_own_gradients(word: str, ranks: int) -> None:
    """`sharded` tells that a sum through a model which it has not split counts as a mean."""
    but = "summed given" if word == "sharded" else "none"
    hold(trained, word, ranks=ranks, within=2e-6, but=but)
