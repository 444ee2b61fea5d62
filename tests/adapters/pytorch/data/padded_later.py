"""Sentences of like lengths together, padded to the longest: the first batches need no padding."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import dream

_LENGTHS = [4] * 12 + [5, 5, 7, 6, 8, 6, 9]


def train(word: str) -> list[torch.Tensor]:
    """The parameters after two epochs of a mean over positions, those of padding too."""
    torch.manual_seed(2)
    with dream.strategy(word) if word else nullcontext():
        data = [torch.randint(1, 9, (length,)) for length in _LENGTHS]
        model = nn.Sequential(nn.Embedding(9, 3), nn.Dropout(0.3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        batches = [[*range(at, min(at + 4, len(data)))] for at in range(0, len(data), 4)]
        for _ in range(2):
            for x in DataLoader(data, batch_sampler=batches, collate_fn=_padded):  # type: ignore[arg-type]
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]


def _padded(samples: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(samples, batch_first=True)
