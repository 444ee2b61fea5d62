"""Folds of a cross-validation in one block: each makes a model and an optimizer."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import dream


def train(word: str) -> dict[str, Any]:
    """Rows that each fold's pass to train on gave, and each evaluation; and what was learnt."""
    torch.manual_seed(1)
    trained, evaluated, ends = [], [], []
    with dream.strategy(word) if word else nullcontext():
        data = TensorDataset(torch.randn(30, 5), torch.randn(30, 1))
        last = None
        for _ in range(3):
            model = nn.Sequential(nn.Linear(5, 1))
            evaluated.append(rows_of(model, data))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            evaluated.append(rows_of(last or model, data))
            model.train()
            rows = 0
            for x, y in DataLoader(Subset(data, range(20)), batch_size=10, shuffle=True):
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                rows += len(x)
            trained.append(rows)
            model.eval()
            evaluated.append(sum(len(x) for x, _ in DataLoader(data, batch_size=10)))
            ends.append(float(sum(p.detach().double().abs().sum() for p in model.parameters())))
            last = model
    return {"trained": trained, "evaluated": evaluated, "ends": ends}


def rows_of(model: nn.Module, data: TensorDataset) -> int:
    """Evaluate a model, by no gradients."""
    model.eval()
    with torch.no_grad():
        return sum(len(model(x)) for x, _ in DataLoader(data, batch_size=10))
