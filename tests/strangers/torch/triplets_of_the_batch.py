"""Triplets of the batch: the farthest of the same class, the nearest of another."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(123)
labels = torch.arange(96) % 4
inputs = torch.randn(96, 6) + labels[:, None]
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
for _epoch in range(2):
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True):
        embedded = nn.functional.normalize(model(x), dim=1)
        apart = torch.cdist(embedded, embedded)
        same = y[:, None] == y[None, :]
        farthest = apart.masked_fill(~same, 0).max(1).values
        nearest = apart.masked_fill(same, 9).min(1).values
        loss = nn.functional.relu(farthest - nearest + 0.3).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
