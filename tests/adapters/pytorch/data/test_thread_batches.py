"""Loaders that a thread of the script's own reads ahead, whose batches it changes: which share a
batch is goes with what is made of it, however far the thread is ahead."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from queue import Queue
from threading import Event, Thread
from typing import Any
from weakref import ref

import pytest
import torch
from beside_plain import hold, of_replicas
from torch import nn
from torch.nn import functional as F
from torch.overrides import _get_current_function_mode_stack
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow
Batch = tuple[torch.Tensor, torch.Tensor]
Change = Callable[[torch.Tensor, torch.Tensor], Batch]


def as_it_is(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return x, y


def doubled(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return x * 2, y


def copied(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return x.to("cpu", copy=True), y.to("cpu", copy=True)


def noisy(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return x + 0.1 * torch.randn_like(x), y


def one_hot(x: torch.Tensor, y: torch.Tensor) -> Batch:
    """The rows by NumPy, which nothing follows."""
    return torch.from_numpy(x.numpy() / 3), F.one_hot(y, 3).float()


def by_numpy(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return torch.from_numpy(x.numpy() / 3), torch.from_numpy(y.numpy().copy())


def standard(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return (x - x.mean(0)) / 2, y


class Buffered:
    """Written into memory that lasts."""

    def __init__(self) -> None:
        self.buffers = [torch.zeros(8, 6) for _ in range(12)]

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> Batch:
        self.buffers.append(self.buffers.pop(0))
        buffer = self.buffers[0][: len(x)]
        buffer.copy_(x)
        return buffer, y


class Ahead:
    """far: everything is read before the first batch is handed out; else one ahead."""

    def __init__(self, batches: Iterable[Any], change: Change, *, far: bool) -> None:
        self.queue: Queue[Batch | None] = Queue(0 if far else 1)
        self.thread = Thread(target=self.read, args=(batches, change), daemon=True)
        self.thread.start()
        if far:
            self.thread.join()

    def read(self, batches: Iterable[Any], change: Change) -> None:
        for x, y in batches:
            self.queue.put(change(x, y))
        self.queue.put(None)

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.queue.get()) is not None:
            yield batch


def passes(loader: DataLoader[Any]) -> Iterator[Any]:
    """Two of them, the second of which begins while the first is trained on."""
    for _ in range(2):
        yield from loader


def learned(change: Change, *, far: bool, copies: bool = False) -> list[float]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.02, momentum=0.9)
    data = TensorDataset(torch.randn(21, 6), torch.randint(0, 3, (21,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for x, y in Ahead(passes(loader), change, far=far):
        if copies:
            x, y = x.clone(), y.clone()
        optimizer.zero_grad()
        drawn = critic(torch.rand(len(x), 6) if far else x / 2).sum() / len(x)
        (F.cross_entropy(model(x), y, reduction="sum") / len(y) + drawn).backward()
        optimizer.step()
    states = [*model.state_dict().values(), *critic.state_dict().values()]
    return [float(sum(each.double().abs().sum() for each in states)), float(torch.rand(()))]


CHANGES = {"as it is": as_it_is, "doubled": doubled, "copied": copied, "one-hot": one_hot}


def trained(word: str) -> dict[str, list[float]]:
    found = {}
    with dream.strategy(word) if word else nullcontext():
        for far in (True, False):
            for name, change in {**CHANGES, "buffered": Buffered()}.items():
                found[f"{name}, far: {far}"] = learned(change, far=far)
            found[f"in the loop, far: {far}"] = learned(as_it_is, far=far, copies=True)
        found["noisy"] = learned(noisy, far=False)
    return found


@of_replicas
def test_a_thread_may_change_what_it_reads_ahead(word: str, ranks: int) -> None:
    hold(trained, word, ranks=ranks, within=2e-5)


def by_order(word: str) -> dict[str, list[float]]:
    with dream.strategy(word) if word else nullcontext():
        return {"by NumPy": learned(by_numpy, far=True)}


def mixed(word: str) -> dict[str, list[float]]:
    with dream.strategy(word):
        return {"mixed": learned(standard, far=False)}


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (by_order, "made anew where dream does not see it"),
        (mixed, "combined with something made of all of its rows, by sub"),
    ],
)
def test_what_cannot_be_followed_there_is_said(
    capfd: pytest.CaptureFixture[str], job: Callable[[str], Any], line: str
) -> None:
    dream.launch(job, "mirrored", n=2, framework="torch", timeout=240)
    assert capfd.readouterr().err.count(line) == 1


def in_a_thread(word: str) -> dict[str, Any]:
    """The whole training in one, as some launchers have it."""
    found: dict[str, Any] = {}

    def train() -> None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data = TensorDataset(torch.randn(21, 6), torch.randint(0, 3, (21,)))
        for x, y in passes(DataLoader(data, batch_size=8, shuffle=True)):
            optimizer.zero_grad()
            F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y).backward()
            optimizer.step()
        found["model"] = float(sum(x.double().abs().sum() for x in model.state_dict().values()))
        found["drawn"] = float(torch.rand(()))

    with dream.strategy(word) if word else nullcontext():
        thread = Thread(target=train)
        thread.start()
        thread.join()
    return found


def test_a_thread_that_trains_itself_draws_for_the_global_batch() -> None:
    hold(in_a_thread, "mirrored", ranks=2, within=2e-5)


def read_before(word: str) -> dict[str, list[float]]:
    """A thread has read batches when the model and its optimizer are made: three on rank 0, one
    on rank 1."""
    ahead: Queue[Batch | None] = Queue(maxsize=3)
    first = Event()

    def read(loader: Iterable[Batch]) -> None:
        for number, batch in enumerate(passes(loader)):
            ahead.put(batch)
            if number == 0:
                first.set()
                if os.environ.get("RANK") == "1":
                    made.wait()
        ahead.put(None)

    made = Event()
    with dream.strategy(word) if word else nullcontext():
        torch.manual_seed(3)
        data = TensorDataset(torch.randn(45, 6), torch.randint(0, 3, (45,)))
        Thread(target=read, args=[DataLoader(data, batch_size=8)], daemon=True).start()
        first.wait()
        while os.environ.get("RANK") == "0" and not ahead.full():
            time.sleep(0.01)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        made.set()
        while (batch := ahead.get()) is not None:
            optimizer.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
    return {"model": [float(sum(x.double().abs().sum() for x in model.state_dict().values()))]}


def test_a_thread_that_reads_before_there_is_an_optimizer_reads_shares() -> None:
    """Else how many whole batches a rank has read by then would be a matter of time."""
    hold(read_before, "mirrored", ranks=2, within=1e-6)


def in_one_pool() -> tuple[int, int]:
    """Blocks whose batches a thread reads that outlives them: the modes that stay in it, and the
    models, but for the last block's."""
    models = []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            with dream.strategy("mirrored"):
                model = nn.Linear(6, 1)
                loader = iter(DataLoader(TensorDataset(torch.randn(16, 6)), batch_size=8))
                while (batch := pool.submit(next, loader, None).result()) is not None:
                    model(batch[0] / 2).mean().backward()
            models.append(ref(model))
            del model, loader, batch
        gc.collect()
        left = len(pool.submit(_get_current_function_mode_stack).result())
    return left, sum(each() is not None for each in models[:-1])


def test_a_thread_that_outlives_blocks_keeps_none_of_them() -> None:
    for found in dream.launch(in_one_pool, n=2, framework="torch", timeout=240):
        assert found == (1, 0)
