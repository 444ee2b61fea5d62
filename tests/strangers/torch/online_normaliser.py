"""Inputs brought to mean 0 and variance 1 by what was seen so far, counted in the model."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Normaliser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(width))
        self.register_buffer("squares", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.count += len(x)
            self.total += x.sum(0)
            self.squares += x.square().sum(0)
        mean = self.total / self.count
        return (x - mean) / (self.squares / self.count - mean.square()).clamp(min=1e-6).sqrt()


torch.manual_seed(130)
data = TensorDataset(torch.randn(64, 4) * 5 + 3, torch.randn(64, 1))
model = nn.Sequential(Normaliser(4), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
