"""Trains, and is long in one state of training, which it marks: the environment says which."""

import json
import sys
from pathlib import Path

import long_state
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dream

torch.manual_seed(5)
x, y = torch.randn(48, 8), torch.randint(0, 3, (48,))


class Slow(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, index):
        long_state.come("loader", after=90)
        return x[index], y[index]


class Net(nn.Sequential):
    def forward(self, inputs):
        long_state.come("compilation", after=0)
        long_state.come("tracing", after=1)
        return super().forward(inputs)


with dream.strategy("mirrored") as strategy:
    model = Net(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    batches, tests = DataLoader(Slow(), 8, shuffle=True), DataLoader(Slow(), 24)
    at = strategy.load(model=model, optimizer=optimizer, scheduler=schedule, data=batches)
    for epoch in range(at.epoch if at else 0, 6):
        for inputs, target in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()
            for inputs, _ in tests:
                long_state.come("evaluation", after=5)
                if epoch == 5:
                    long_state.come("end", after=0)
                model(inputs)
            model.train()
        schedule.step()
        long_state.come("sleep", after=2)
    state = strategy.full_state(model)
    if strategy.topology.rank == 0:
        told = {name: value.tolist() for name, value in state.items()}
        Path(sys.argv[1]).write_text(json.dumps(told))
