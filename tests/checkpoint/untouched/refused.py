"""Loops of forms that are not found again: the second argument says which."""

import sys

import fate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 6))
kept = {}


def update(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def zipped():
    for _ in range(6):
        for (x,), (z,) in zip(loader, other, strict=True):
            update(x + z)


def by_while():
    step, batches = 0, iter(loader)
    while step < 36:
        try:
            (x,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            continue
        update(x)
        step += 1


def by_hand():
    for start in range(0, 288, 8):
        at = start % 48
        update(data.tensors[0][at : at + 8])


def second():
    for _ in range(3):
        for (x,) in loader:
            update(x)
    for _ in range(3):
        for (x,) in other:
            update(x)


def best():
    for _ in range(6):
        for (x,) in loader:
            update(x)
        kept["best"] = {k: v.clone().repeat(200, 40) for k, v in model.state_dict().items()}


with dream.strategy(sys.argv[1]):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    other = DataLoader(data, batch_size=8, shuffle=True)
    globals()[sys.argv[2]]()
    fate.tell(model)
