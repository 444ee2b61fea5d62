"""Models that do more than give a row for each sample, trained by a plain loop on two devices of
one process, and on one without dream."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import distributions, nn
from torch.nn import functional as F

import dream

ROWS, WIDE = 13, 6
CALLS = {"made": 0}
seen = 0


class Meter:
    def __init__(self) -> None:
        self.mean, self.log = torch.zeros(()), []


class Habit(nn.Module):
    """Two layers. forward: what is made of them."""

    def __init__(self, forward: Callable[[Habit, torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.run = nn.Linear(WIDE, 8), nn.Linear(8, 1), forward
        self.memory = nn.GRU(2, 4, bidirectional=True, batch_first=True)
        self.words: list[float] = []
        self.meter, self.generator = Meter(), torch.Generator().manual_seed(2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x))


def python_draws(m: Habit, x: torch.Tensor) -> Any:
    return m.last(m.hidden(x) * (1.0 if random.random() < 0.5 else 0.5))


def numpy_draws(m: Habit, x: torch.Tensor) -> Any:
    return m.last(m.hidden(x) * torch.from_numpy(np.random.rand(8).astype("float32")))


def own_draws(m: Habit, x: torch.Tensor) -> Any:
    return m.last(m.hidden(x + 0.3 * torch.randn(x.shape, generator=m.generator)))


def distribution(m: Habit, x: torch.Tensor) -> Any:
    return distributions.Normal(m.last(m.hidden(x)), 1.0)


def holder(m: Habit, x: torch.Tensor) -> Any:
    return SimpleNamespace(mean=m.last(m.hidden(x)))


def number(m: Habit, x: torch.Tensor) -> Any:
    hidden = m.hidden(x)
    return m.last(hidden), float((hidden > 0).float().mean())


def as_long_as_needed(m: Habit, x: torch.Tensor) -> Any:
    return m.last(m.hidden(x)).expand(-1, int((x[:, 0] > 0.5).sum()) + 1)


def centred_in_training(m: Habit, x: torch.Tensor) -> Any:
    hidden = m.hidden(x)
    return m.last(hidden - hidden.mean(0) if m.training else hidden)


def writes_to_its_input(m: Habit, x: torch.Tensor) -> Any:
    return m.last(m.hidden(x.mul_(0.5).add_(0.1)))


def keeps_in_a_list(m: Habit, x: torch.Tensor) -> Any:
    hidden = m.hidden(x)
    m.words.append(float(hidden.detach().mean()))
    return m.last(hidden) * (1 + 0.1 * len(m.words))


def keeps_in_an_object(m: Habit, x: torch.Tensor) -> Any:
    hidden = m.hidden(x)
    m.meter.mean = hidden.mean()
    return m.last(hidden)


def counts_outside(m: Habit, x: torch.Tensor) -> Any:
    CALLS["made"] += 1
    return m.last(m.hidden(x)) * (1 + 0.1 * CALLS["made"])


def sets_a_variable(m: Habit, x: torch.Tensor) -> Any:
    global seen
    seen += len(x)
    return m.last(m.hidden(x)) * (1 + 0.01 * seen)


def wants_many_rows(m: Habit, x: torch.Tensor) -> Any:
    if len(x) < 7:
        raise IndexError("too few")
    return m.last(m.hidden(x))


def recurrent(m: Habit, x: torch.Tensor) -> Any:
    return m.last(m.memory(x.unflatten(1, (3, 2)))[0][:, -1])


HABITS = (
    python_draws, numpy_draws, own_draws, distribution, holder, number, as_long_as_needed,
    centred_in_training, writes_to_its_input, keeps_in_a_list, keeps_in_an_object, counts_outside,
    sets_a_variable, wants_many_rows, recurrent,
)  # fmt: skip


def loss_of(model: Habit, given: Any, y: torch.Tensor) -> torch.Tensor:
    size = model.meter.mean
    if isinstance(given, tuple):
        given, number = given
        return F.mse_loss(given, y) + number * given.mean()
    out = given if isinstance(given, torch.Tensor) else given.mean
    return F.mse_loss(out, y.expand_as(out)) + size


def learn(forward: Callable[[Habit, torch.Tensor], Any], *, devices: int) -> list[torch.Tensor]:
    """Losses, inputs and parameters. devices: 0 for the plain loop."""
    global seen
    seen = CALLS["made"] = 0
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    block = dream.strategy("data_parallel", devices=devices) if devices else nullcontext()
    with block:
        model = Habit(forward)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        values = []
        for _ in range(6):
            x, y = torch.randn(ROWS, WIDE), torch.randn(ROWS, 1)
            optimizer.zero_grad()
            loss = loss_of(model, model(x), y)
            loss.backward()
            optimizer.step()
            values += [loss.detach(), x]
        kept = torch.tensor([float(len(model.words)), float(CALLS["made"]), float(seen)])
        return [*values, kept, *(p.detach().clone() for p in model.parameters())]


def main(file: str) -> None:
    found = {
        habit.__name__: [learn(habit, devices=devices) for devices in (0, 2)] for habit in HABITS
    }
    Path(file).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
