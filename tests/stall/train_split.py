"""A rank of a split model: FOLDER KIND FATE."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

import dream

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
BEGUN = 3
NAME, OPTIONS = {
    "sharded": ("sharded", {}),
    "zero=1": ("sharded", {"zero": 1}),
    "tensor": ("model_parallel", {"split": "tensor"}),
    "pipeline": ("model_parallel", {"split": "pipeline"}),
    "local_sgd": ("local_sgd", {"every": 2}),
}[KIND]

with dream.strategy(NAME, **OPTIONS) as strategy:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer = strategy.prepare(model, optimizer)
    step = strategy.train_step(model, nn.functional.mse_loss, optimizer)
    x = torch.ones(4, 8)
    for index in range(10**9):
        step(x, x)
        if index == BEGUN:
            (FOLDER / f"trains{os.environ['RANK']}").touch()
