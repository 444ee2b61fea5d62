"""Two views whose embeddings' correlation over the batch is to be the identity."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(124)
data = TensorDataset(torch.randn(64, 6))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
for _epoch in range(2):
    for (x,) in DataLoader(data, batch_size=32, shuffle=True):
        one, two = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        one, two = ((z - z.mean(0)) / z.std(0) for z in (one, two))
        correlation = one.T @ two / len(x)
        loss = (correlation - torch.eye(5)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
