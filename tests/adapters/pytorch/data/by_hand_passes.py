"""Passes that begin before there is an optimizer, over what all ranks read alike or its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import dream

WIDTH, ROWS = 4, 23


class Drawn(IterableDataset[torch.Tensor]):
    """Draws its samples as they are read. seed: of a generator of its own; None for torch's."""

    def __init__(self, seed: int | None) -> None:
        self._own = None if seed is None else torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(ROWS):
            yield torch.randn(WIDTH, generator=self._own)


class Noisy(Dataset[tuple[torch.Tensor]]):
    """Adds noise to a sample when it is read."""

    def __init__(self, samples: torch.Tensor) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (self._samples[index] + 0.1 * torch.randn(WIDTH),)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def train(word: str, data: str, *, steps: bool, by_rank: bool) -> dict[str, Any]:
    """Go over a stream, or a shuffled set, and count or train. steps: its optimizer is made in the
    loop. by_rank: each rank seeds what it reads by its own number."""
    torch.manual_seed(1)
    lines = _Lines()
    logging.getLogger("dream").addHandler(lines)
    with dream.strategy(word) if word else nullcontext() as strategy:
        model = nn.Linear(WIDTH, 1)
        rank = strategy.topology.rank if strategy is not None else 0
        samples = torch.randn(ROWS, WIDTH)
        if by_rank:
            torch.manual_seed(rank)
        own = rank if by_rank else None
        made = {"stream": Drawn(own), "set": TensorDataset(samples), "noisy set": Noisy(samples)}
        loader: Any = DataLoader(made[data], batch_size=6, shuffle=data != "stream")
        optimizer, total, rows = None, torch.zeros(WIDTH), []
        for batch in loader:
            x = batch if data == "stream" else batch[0]
            rows.append(len(x))
            total += x.sum(0)
            if steps:
                optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
    logging.getLogger("dream").removeHandler(lines)
    found = [*model.parameters()] if steps else [total]
    ends = torch.cat([x.detach().reshape(-1) for x in found]).tolist()
    return {"ends": ends, "rows": rows, "said": lines.said}


def count_first() -> int:
    """Count a stream on rank 0, for which the others wait."""
    with dream.strategy("mirrored"), dream.rank_zero_first() as first:
        return sum(map(len, DataLoader(Drawn(1), batch_size=6))) if first else 0
