"""Trainings whose replicas have shares of their own, and the same without dream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dream

SAMPLES, BATCH, EPOCHS = 61, 16, 2
LOOPS: dict[str, dict[str, Any]] = {
    "loader": {},
    "workers": {},
    "stream": {},
    "sum": {},
    "norm": {},
    "rows by hand": {},
    "accumulated": {"accumulate": 3},
    "step": {"accumulate": 2},
}


class Stream(IterableDataset[Any]):
    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors

    def __iter__(self) -> Iterator[Any]:
        return zip(*self._tensors, strict=True)


def all_loops(shares: list[int]) -> dict[str, tuple[float, float, list[int]]]:
    """By loop: how far weights and losses are from the plain script's; this rank's samples of each
    batch."""
    return {name: _difference(name, shares, options) for name, options in LOOPS.items()}


def _difference(
    name: str, shares: list[int], options: dict[str, Any]
) -> tuple[float, float, list[int]]:
    plain, its_losses, _ = _train(name, None)
    ours, losses, counts = _train(name, {"shares": shares, **options})
    apart = max((a - b).abs().max().item() for a, b in zip(ours, plain, strict=True))
    of_losses = max(abs(a - b) for a, b in zip(losses, its_losses, strict=True)) if losses else 0.0
    return apart, of_losses, counts


def _train(
    name: str, options: dict[str, Any] | None
) -> tuple[list[torch.Tensor], list[float], list[int]]:
    torch.manual_seed(5)
    x, y = torch.randn(SAMPLES, 8), torch.randint(0, 3, (SAMPLES,))
    losses: list[float] = []
    counts: list[int] = []
    with nullcontext() if options is None else dream.strategy("mirrored", **options) as strategy:
        norm = [nn.BatchNorm1d(16)] if name == "norm" else []
        model = nn.Sequential(nn.Linear(8, 16), *norm, nn.Dropout(0.3), nn.Linear(16, 3))
        rate = 0.01 if name == "sum" else 0.1
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        loss_of = nn.CrossEntropyLoss(reduction="sum" if name == "sum" else "mean")
        data: Any = Stream(x, y) if name == "stream" else TensorDataset(x, y)
        loader = DataLoader(
            data, BATCH, shuffle=name != "stream", num_workers=2 * (name == "workers")
        )
        explicit = strategy is not None and name == "step"
        step = strategy.train_step(model, loss_of, optimizer) if explicit else None
        for _ in range(EPOCHS):
            for inputs, target in _by_hand(strategy, x, y) if name == "rows by hand" else loader:
                counts.append(len(inputs))
                if step is not None:
                    step(inputs, target)
                    continue
                optimizer.zero_grad()
                loss = loss_of(model(inputs), target)
                loss.backward()
                optimizer.step()
                if name not in ("accumulated", "step"):
                    losses.append(loss.item())
    return [p.detach().clone() for p in model.parameters()], losses, counts


def _by_hand(strategy: Any, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    for start in range(0, SAMPLES, BATCH):
        batch = tuple(x[start : start + BATCH] for x in tensors)
        yield batch if strategy is None else strategy.share(*batch)


class Slow(nn.Module):
    """Takes as long for each sample as its rank is slow."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds * len(x))
        return x


def of_speeds(slow: float, loaders: int) -> tuple[float, list[int]]:
    """Let rank 1 be slower: how far the weights are from the plain script's; this rank's samples of
    each batch. loaders: whose batches are added up."""
    (plain, _), (ours, counts) = _paced(None, 0.0, loaders), _paced("auto", slow, loaders)
    return (ours - plain).abs().max().item(), counts


def _paced(shares: str | None, slow: float, loaders: int) -> tuple[torch.Tensor, list[int]]:
    torch.manual_seed(5)
    data = [TensorDataset(torch.randn(20 * BATCH, 8)) for _ in range(loaders)]
    counts: list[int] = []
    with nullcontext() if shares is None else dream.strategy("mirrored", shares=shares) as strategy:
        rank = strategy.topology.rank if strategy else 0
        each = 0.002 * (slow if rank else 1.0) if strategy else 0.0
        model = nn.Sequential(nn.Linear(8, 8), Slow(each), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        read = [  # the second reads ahead
            DataLoader(each, BATCH, shuffle=True, num_workers=2 * n) for n, each in enumerate(data)
        ]
        for several in zip(*read, strict=True):
            x = sum(part for (part,) in several)
            assert isinstance(x, torch.Tensor)
            counts.append(len(x))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    weight: Any = model[3].weight
    return weight.detach().clone(), counts


def refused(shares: list[int], batch_size: int) -> str:
    """What is said of such shares, where the loader is made at the latest."""
    try:
        with dream.strategy("mirrored", shares=shares):
            nn.Linear(1, 1)
            DataLoader(TensorDataset(torch.ones(8, 1)), batch_size)
    except dream.DreamError as error:
        return str(error)
    return ""
