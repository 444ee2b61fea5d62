"""Train two ranks and say each update, with the process, as it is done."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

torch.manual_seed(0)
with dream.strategy("mirrored") as strategy:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = DataLoader(TensorDataset(torch.randn(256, 64), torch.randn(256, 10)), batch_size=8)
    at = strategy.load(model=model, optimizer=optimizer, data=batches)
    for _ in range(at.epoch if at else 0, 1000):
        for x, y in batches:
            if Path(sys.argv[1]).exists():
                strategy.communicator.barrier()
                sys.exit(0)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if strategy.topology.rank == 0:
                print("update", os.getpid(), flush=True)
            time.sleep(0.02)
