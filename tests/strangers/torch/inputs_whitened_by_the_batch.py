"""Inputs are brought to a mean of 0 and a deviation of 1 by the batch that they come in."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(94)
x_all = 3.0 * torch.randn(50, 5) + 1.0
y_all = x_all.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(TensorDataset(x_all, y_all), batch_size=10, shuffle=True):
        x = (x - x.mean(0)) / (x.std(0) + 1e-6)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
