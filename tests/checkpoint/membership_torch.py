"""Trains a little, and writes down each step's samples: OUT SECONDS."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

out, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(5)
x, y = torch.randn(61, 8), torch.randint(0, 3, (61,))
with dream.strategy("mirrored" if "RANK" in os.environ else "single") as strategy:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(x, y, torch.arange(61))
    batches = DataLoader(data, batch_size=16, shuffle=True)
    at = strategy.load(model=model, optimizer=optimizer, data=batches)
    step = at.step if at else 0
    for epoch in range(at.epoch if at else 0, 8):
        for inputs, target, which in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()
            step += 1
            with Path(f"{out}.samples").open("a") as file:
                file.write(json.dumps([epoch, step, which.tolist()]) + "\n")
            with Path(f"{out}.step.{strategy.topology.rank}").open("w") as file:
                file.write(f"{step} {os.getpid()}")
            time.sleep(seconds)
    state = strategy.full_state(model)
    if strategy.topology.rank == 0:
        with Path(f"{out}.part").open("w") as file:
            json.dump({name: value.tolist() for name, value in state.items()}, file)
        Path(f"{out}.part").replace(out)
