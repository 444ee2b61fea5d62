"""Loops that draw by what dream does not follow, and others that only seem to."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dream

KEPT = torch.rand_like
"""As it was before the block."""


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Counts(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.binomial(torch.full((6,), 10.0), torch.full((6,), 0.5))


def said() -> dict[str, list[str]]:
    """The lines of each loop."""
    heard = Lines()
    logging.getLogger("dream").addHandler(heard)
    found = {}
    for loop in (seeds, seeds_and_draws, reads_whole):
        torch.manual_seed(0)
        with dream.strategy("mirrored"):
            loop(nn.Linear(6, 1), DataLoader(TensorDataset(torch.randn(24, 6)), batch_size=8))
        found[loop.__name__] = [*heard.lines]
        heard.lines.clear()
    return found


def seeds(model: nn.Module, batches: DataLoader[Any], draw: Any = None) -> None:
    for step, (x,) in enumerate(batches):
        torch.default_generator.manual_seed(step)
        model(x if draw is None else x + draw(x)).mean().backward()


def seeds_and_draws(model: nn.Module, batches: DataLoader[Any], draw: Any = KEPT) -> None:
    seeds(model, batches, draw)


def reads_whole(model: nn.Module, batches: DataLoader[Any]) -> None:
    for _ in range(2):
        for (x,) in batches:
            model.train()(x).mean().backward()
        model.eval()
        for x in DataLoader(Counts(), batch_size=8):
            model(x)
