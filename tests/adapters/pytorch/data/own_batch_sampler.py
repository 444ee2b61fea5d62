"""A batch sampler of the script's own, told the epoch and a batch size through its loader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import dream


class ByEpoch(Sampler[list[int]]):
    def __init__(self, samples: int, batch_size: int) -> None:
        self.samples, self.batch_size, self.epoch = samples, batch_size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        draw = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.samples, generator=draw)
        yield from (part.tolist() for part in order.split(self.batch_size))

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)


def trained(*, plain: bool) -> tuple[list[float], list[int]]:
    torch.manual_seed(4)
    x = torch.randn(49, 5)
    losses, lengths = [], []
    with nullcontext() if plain else dream.strategy("mirrored"):
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        loader = DataLoader(data, batch_sampler=ByEpoch(49, 8))
        told = loader.batch_sampler
        assert isinstance(told, Sampler)
        for epoch in range(4):
            if hasattr(told, "set_epoch"):  # as scripts ask
                told.set_epoch(epoch // 2)
            if epoch == 3:
                told.epoch, told.batch_size = 7, 12  # type: ignore[attr-defined]
            lengths.append(len(loader))
            for rows, right in loader:
                optimizer.zero_grad()
                loss = (model(rows) - right).square().mean()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
    return losses, lengths
