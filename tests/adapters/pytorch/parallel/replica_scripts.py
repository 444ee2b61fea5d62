"""Loops and explicit steps on two devices of one process, and the same on one, without dream."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dream

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ROWS, CLASSES = 13, 4
WEIGHTS = torch.tensor([1.0, 5.0, 0.2, 2.0])


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), *layers, nn.ReLU(), nn.Linear(12, CLASSES))


class Noted(nn.Module):
    """Keeps what a call gives, for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.size = net(), torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        self.size = out.square().mean()
        return out


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, CLASSES)
        self.middle = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(checkpoint(self.middle, self.first(x), use_reentrant=False))
        return out


def per_token(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kept = y != 1
    return (F.cross_entropy(out, y, reduction="none") * kept).sum() / kept.sum()


STEPS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "mean": (net, F.cross_entropy),
    "sum": (net, lambda out, y: F.cross_entropy(out, y, reduction="sum")),
    "class weights": (net, lambda out, y: F.cross_entropy(out, y, weight=WEIGHTS)),
    "ignored": (net, lambda out, y: F.cross_entropy(out, y, ignore_index=1)),
    "masked by hand": (net, per_token),
    "two terms": (net, lambda out, y: F.cross_entropy(out, y) + 0.1 * out.square().mean()),
    "in the batch": (net, lambda out, _: (out @ out.T).logsumexp(1).mean()),
    "two terms of dropout": (
        lambda: net(nn.Dropout(0.4)),
        lambda out, y: F.cross_entropy(out, y) + 0.1 * out.square().mean(),
    ),
    "in the batch, BatchNorm": (
        lambda: net(nn.BatchNorm1d(12, momentum=0.5)),
        lambda out, _: (out @ out.T).logsumexp(1).mean(),
    ),
    "dropout": (lambda: net(nn.Dropout(0.4)), F.cross_entropy),
    "dropout and BatchNorm": (lambda: net(nn.BatchNorm1d(12), nn.Dropout(0.4)), F.cross_entropy),
}


def step(name: str, *, devices: int) -> list[torch.Tensor]:
    """Losses and parameters. devices: 0 for the plain loop."""
    make, loss = STEPS[name]
    torch.manual_seed(3)
    if not devices:
        return loop(make(), loss)
    with dream.strategy("data_parallel", devices=devices) as strategy:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        train = strategy.train_step(model, loss, optimizer)
        values = [train(*batch()).detach() for _ in range(5)]
    return [*values, *(x.detach().double() for x in model.state_dict().values())]


def again() -> str:
    """What a model is told whose dropout torch's checkpoints compute again."""
    with dream.strategy("data_parallel", devices=2):
        model = Again()
        try:
            loop(model, F.cross_entropy)
        except dream.Unsupported as error:
            return str(error)
    return "nothing"


def late(*, devices: int) -> list[torch.Tensor]:
    """A loop after its block, whose dropout torch's checkpoints compute again."""
    torch.manual_seed(3)
    if not devices:
        return loop(Again(), F.cross_entropy)
    with dream.strategy("data_parallel", devices=devices):
        model = Again()
    return loop(model, F.cross_entropy)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, 6), torch.randint(0, CLASSES, (ROWS,))


def loop(model: nn.Module, loss: Loss) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    values = []
    for _ in range(5):
        x, y = batch()
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return [*values, *(x.detach().double() for x in model.state_dict().values())]


def kept(*, devices: int) -> list[torch.Tensor]:
    """A loop whose loss has what the model keeps on itself."""
    torch.manual_seed(3)
    if not devices:
        model = Noted()
        return loop(model, lambda out, y: F.cross_entropy(out, y) + model.size)
    with dream.strategy("data_parallel", devices=devices):
        model = Noted()
        return loop(model, lambda out, y: F.cross_entropy(out, y) + model.size)


def main(file: str) -> None:
    found: dict[str, Any] = {
        name: [step(name, devices=devices) for devices in (0, 2)] for name in STEPS
    }
    found["kept"] = [kept(devices=devices) for devices in (0, 2)]
    found["late"] = [late(devices=devices) for devices in (0, 2)]
    found["again"] = again()
    Path(file).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
