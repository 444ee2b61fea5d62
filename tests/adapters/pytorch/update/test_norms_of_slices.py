"""Modules made of another's parts, as `net[:3]`: the statistics of a BatchNorm in both are those of
one device, whichever is called."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from beside_plain import hold, in_cells
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow
KINDS = ("rates", "by turns", "later")


def trained(word: str) -> dict[str, list[float]]:
    with dream.strategy(word) if word else nullcontext():
        return {kind: learned(kind) for kind in KINDS}


def learned(kind: str) -> list[float]:
    """What parameters and each statistic come to. kind: slices give groups of parameters alone, are
    trained by turns with the whole, or in its place from the second pass on."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    groups = [{"params": net[:2].parameters(), "lr": 0.01}, {"params": net[3].parameters()}]
    rates = kind == "rates"
    optimizer = torch.optim.SGD(groups if rates else net.parameters(), lr=0.05, momentum=0.9)
    encoder = net if rates else nn.Sequential(*[*net.children()][:-1])
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    for epoch in range(3):
        for step, (x, y) in enumerate(DataLoader(data, batch_size=8, shuffle=True)):
            whole = rates or (epoch == 0 if kind == "later" else step % 2 == 0)
            loss = F.cross_entropy(net(x), y) if whole else encoder(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [float(each.double().abs().sum()) for each in net.state_dict().values()]


@in_cells
def test_statistics_are_those_of_one_device(word: str, ranks: int) -> None:
    hold(trained, word, ranks=ranks, within=2e-6)


def test_the_whole_is_not_said_to_be_unstepped(capfd: pytest.CaptureFixture[str]) -> None:
    dream.launch(trained, "sharded", n=2, framework="torch", timeout=240)
    assert "nothing has stepped" not in capfd.readouterr().err
