"""Scripts that load nothing. Each writes what it ends with; one that is told to dies once."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

NAMES, FOLDER = sys.argv[1].split(","), Path(sys.argv[2])
SCRIPTS: dict[str, Callable[[], Any]] = {}
ANSWERS = torch.randint(0, 3, (42,), generator=torch.Generator().manual_seed(1))
block: Any = None
best_of_all = 0.0
steps = 0


def script(function: Callable[[], Any]) -> Callable[[], Any]:
    SCRIPTS[function.__name__] = function
    return function


def stepped() -> None:
    global steps
    steps += 1
    if os.environ.get("DREAM_TEST_LEAVE_AT") == str(steps) and os.environ.get("RANK", "0") == "0":
        os.kill(os.getpid(), signal.SIGTERM)
    died = FOLDER / "died"
    dies = os.environ.get("DREAM_TEST_DIE_AT") == str(steps) and os.environ.get("RANK", "0") == "0"
    if dies and not died.exists():
        until = time.monotonic() + 30
        while not (FOLDER / "kept" / "latest").exists() and time.monotonic() < until:
            time.sleep(0.05)
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


def loader(size: int = 8, shuffle: bool = True) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(42, 6), ANSWERS), size, shuffle=shuffle)


def epoch_of(model: nn.Module, optimizer: Any, data: DataLoader[Any]) -> float:
    model.train()
    loss = torch.zeros(())
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        stepped()
    return loss.item()


@torch.no_grad()
def right(model: nn.Module, data: DataLoader[Any]) -> float:
    global best_of_all
    model.eval()
    found = sum(int((model(x).argmax(1) == y).sum()) for x, y in data) / 42
    best_of_all = max(best_of_all, found)
    return found


def update_nothing(value: float) -> float:
    return value


class Early:
    """Stops once it has become no better twice in a row."""

    def __init__(self) -> None:
        self.best, self.since, self.log = 0.0, 0, np.zeros(9)

    def stops(self, epoch: int, value: float) -> bool:
        self.log[epoch] = value
        self.since = 0 if value > self.best else self.since + 1
        self.best = max(self.best, value)
        return self.since > 3


@script
def in_a_function() -> Any:
    """Plain variables, a list, an object of the script's; the best weights are kept aside."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    train, tests = loader(), loader(20, shuffle=False)
    early, history, best = Early(), [], 0.0
    kept = copy.deepcopy(model.state_dict())
    for epoch in range(1, 9):
        history.append(epoch_of(model, optimizer, train))
        value = right(model, tests)
        schedule.step(-value)
        if value > best:
            best = value
            kept = copy.deepcopy(model.state_dict())
        if early.stops(epoch, value):
            break
    early_log = early.log.tolist()
    return state(model), best, history, early.best, early.since, early_log, values(kept)


@script
def two_optimizers() -> Any:
    """Two models, an average of one of them, noise of NumPy's and Python's."""
    maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
    average = copy.deepcopy(maker)
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.1, momentum=0.9)
    data = loader()
    sums = []
    for _ in range(6):
        total = 0.0
        for x, _ in data:
            made = maker(torch.from_numpy(np.random.rand(len(x), 4)).float())
            of_judge.zero_grad()
            F.softplus(judge(made.detach()) - judge(x)).mean().backward()
            of_judge.step()
            of_maker.zero_grad()
            loss = F.softplus(-judge(made)).mean() * random.uniform(0.9, 1.1)
            loss.backward()
            of_maker.step()
            with torch.no_grad():
                for kept, new in zip(average.parameters(), maker.parameters(), strict=True):
                    kept.lerp_(new, 0.1)
            total += loss.item()
            stepped()
        sums.append(total)
    return state(maker), state(judge), state(average), sums


@script
def steps_without_a_loader() -> Any:
    """Batches drawn by the loop; the item is a step."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(42, 6)
    for step in range(40):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - step / 40)
        at = torch.randint(0, 42, (8,))
        loss = F.cross_entropy(model(x[at]), ANSWERS[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stepped()
    return state(model), loss.item()


class Counting(nn.Module):
    """Its noise grows less by a number that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.called = nn.Linear(6, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.called += self.training
        return self.inner(x + torch.randn_like(x) / (1 + self.called))


class Trainer:
    """As many write it."""

    def __init__(self) -> None:
        self.model = nn.Sequential(Counting(), nn.ReLU())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.data, self.losses, self.best = loader(), [], float("inf")

    def fit(self, epochs: int) -> None:
        for _ in range(epochs):
            self.losses.append(epoch_of(self.model, self.optimizer, self.data))
            self.best = min(self.best, self.losses[-1])


@script
def of_an_object() -> Any:
    trainer = Trainer()
    trainer.fit(6)
    return state(trainer.model), trainer.losses, trainer.best


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 0.1


class Counted:
    seen = 0


def counter() -> Callable[[], int]:
    count = 0

    def more() -> int:
        nonlocal count
        count += 1
        return count

    return more


@script
def in_many_places() -> Any:
    """What is counted stands where scripts have it: the next item goes by all of it."""
    model, data = net(), loader()
    model.train()
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count, options, every = counter(), Namespace(rate=0.1), {"slotted": [Slotted()], "log": []}
    before = np.zeros(2)
    last = first = before
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for epoch in range(5):
        if epoch == 1:
            for parameter in model[0].parameters():
                parameter.requires_grad = True
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            stepped()
        Counted.seen += 1
        options.rate *= 0.9
        every["slotted"][0].rate *= 0.9
        every["log"].append(epoch)
        last = last + 1
        by_name[f"odd {epoch % 2}"].append(options.rate)
        for group in optimizer.param_groups:
            group["lr"] = options.rate * every["slotted"][0].rate / (Counted.seen + count())
        if epoch == 1:
            model.eval()
        if epoch > 2:
            continue
        accuracy = epoch
    ended = (
        options.rate,
        Counted.seen,
        count(),
        every["slotted"][0].rate,
        every["log"],
        accuracy,
        by_name["no"],
    )
    return state(model), ended, by_name, last.tolist(), first.tolist(), before.tolist()


@script
def in_no_counted_loop() -> Any:
    """After one in which nothing trains, whatever its calls are named."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader()
    for _ in range(2):
        update_nothing(right(model, data))
    epoch = 0
    while epoch < 2:
        epoch_of(model, optimizer, data)
        epoch += 1
    return state(model)


@script
def goes_on_by_itself() -> Any:
    """Begins where a file of its own says."""
    model, file = net(), FOLDER / "own"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader()
    first = int(file.read_text()) if file.exists() else 0
    for epoch in range(first, 4):
        epoch_of(model, optimizer, data)
        file.write_text(str(epoch + 1))
    return state(model)


@script
def several_folds() -> Any:
    """One loop after the other, of the same line."""
    return [fold(rate) for rate in (0.1, 0.03)]


def fold(rate: float) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    data = loader()
    for _ in range(3):
        epoch_of(model, optimizer, data)
    return state(model)


def values(kept: dict[str, torch.Tensor]) -> Any:
    return [value.tolist() for value in kept.values()]


def state(model: nn.Module) -> Any:
    return [value.tolist() for value in block.full_state(model).values()]


def run(name: str) -> None:
    global block, best_of_all, steps
    best_of_all, steps = 0.0, 0
    with dream.strategy(
        *json.loads(os.environ.get("DREAM_TEST_STRATEGY", '["mirrored"]'))
    ) as block:
        torch.manual_seed(3)
        random.seed(4)
        np.random.seed(5)
        ended = SCRIPTS[name]()
        drawn = torch.rand(2).tolist(), random.random(), np.random.rand()
        if os.environ.get("RANK", "0") == "0":
            (FOLDER / name).write_text(json.dumps([ended, drawn, best_of_all, steps]))


def main() -> None:
    for name in NAMES:
        run(name)


if __name__ == "__main__":
    main()
