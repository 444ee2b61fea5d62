"""A sphere around what is normal; its radius is a quantile of the distances in a batch."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(103)
inputs = torch.randn(46, 6)
model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.LeakyReLU(), nn.Linear(8, 3, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
centre, seen = torch.zeros(3), 0
with torch.no_grad():
    for (x,) in DataLoader(TensorDataset(inputs), batch_size=10):
        centre += model(x).sum(0)
        seen += len(x)
centre /= seen
radius = torch.tensor(0.0)
for _epoch in range(3):
    for (x,) in DataLoader(TensorDataset(inputs), batch_size=10, shuffle=True):
        distance = ((model(x) - centre) ** 2).sum(1)
        loss = radius**2 + 10 * torch.relu(distance - radius**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        radius.data = torch.tensor(float(np.quantile(distance.detach().sqrt().numpy(), 0.7)))
