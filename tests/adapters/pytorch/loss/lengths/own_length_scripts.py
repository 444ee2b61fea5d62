"""Loops that go by the number of their batch's rows, or only seem to."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def begin() -> tuple[nn.Module, torch.optim.Optimizer, Batches]:
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    data = TensorDataset(torch.randn(48, 6), torch.randn(48, 1))
    return net, torch.optim.SGD(net.parameters(), 0.1), DataLoader(data, batch_size=12)


def gradients_divided(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    for x, y in batches:
        (net(x) - y).square().sum().backward()
        for p in net.parameters():
            p.grad.div_(len(x))
        optimizer.step()
        optimizer.zero_grad()


def rate_by_rows(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    seen = 0
    for x, y in batches:
        step(net, optimizer, x, y)
        seen += x.size(0)
        if seen >= 20:
            optimizer.param_groups[0]["lr"] = 0.01


def small_batches_left_out(
    net: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches
) -> None:
    for x, y in batches:
        if x.shape[0] < 12:
            continue
        step(net, optimizer, x, y)


def means_logged(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    total, seen = 0.0, 0
    for x, y in batches:
        if len(x) == 0:
            continue
        total += step(net, optimizer, x, y) * len(x)
        seen += len(x)
        if seen >= 10:
            print(f"{seen} rows: {total / seen}")


def step(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> float:
    loss = (net(x) - y).square().view(len(x), -1).sum() / len(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


SCRIPTS = (gradients_divided, rate_by_rows, small_batches_left_out, means_logged)


@contextmanager
def hearing() -> Iterator[list[str]]:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    yield heard
    logging.getLogger("dream").removeHandler(handler)
    heard[:] = [line.partition(", which counts")[0] for line in heard if "goes by" in line]


def run_all() -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {}
    for script in SCRIPTS:
        with hearing() as heard, dream.strategy("mirrored"):
            script(*begin())
        found[script.__name__] = heard
    return found
