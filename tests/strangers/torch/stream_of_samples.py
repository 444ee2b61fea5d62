"""An iterable data set, shuffled by a buffer of its own."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

random.seed(65)
torch.manual_seed(65)
rows = torch.randn(50, 6)


class Stream(IterableDataset):
    def __iter__(self):
        held = []
        for row in rows:
            held.append(row)
            if len(held) == 10:
                yield held.pop(random.randrange(10))
        random.shuffle(held)
        yield from held


model = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x in DataLoader(Stream(), batch_size=8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
