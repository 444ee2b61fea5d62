"""A script whose replay goes another way: the second argument says how."""

import sys

import fate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 6))
how = sys.argv[2]


def epoch_over(batches):
    if how == "raises":
        print(1 / batches)


def elsewhere():
    for (x,) in loader:
        update(x)


def update(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


with dream.strategy(sys.argv[1]):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for _ in range(1 if how == "ends" else 6):
        batches = 0
        if how == "moved":
            elsewhere()
            continue
        for (x,) in loader:
            update(x)
            batches += 1
        epoch_over(batches)
        torch.save(model.state_dict(), "model.pt")
    fate.tell(model)
