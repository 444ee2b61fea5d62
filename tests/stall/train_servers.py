"""A worker, or the server that is the last rank: FOLDER REDUCTION FATE."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import dream

FOLDER = Path(sys.argv[1])
BEGUN = 3

with dream.strategy("parameter_server", workers=2, servers=1, staleness=8):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = DataLoader(TensorDataset(torch.ones(3000, 4)), batch_size=3)
    for _ in range(10_000):
        for step, (x,) in enumerate(batches):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if step >= BEGUN:
                (FOLDER / f"trains{os.environ['RANK']}").touch()
