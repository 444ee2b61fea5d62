"""A layer in the domain of frequencies, with complex weights and one complex number."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Spectral(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, dtype=torch.cfloat) * 0.2)
        self.phase = nn.Parameter(torch.randn(1, dtype=torch.cfloat))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        mixed = torch.fft.fft(x.to(torch.cfloat)) @ self.weight * self.phase
        return self.out(torch.fft.ifft(mixed).real)


torch.manual_seed(181)
x = torch.randn(46, 8)
data = TensorDataset(x, x[:, :1] * x[:, 1:2])
model = Spectral(8)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = []
for _epoch in range(3):
    for features, target in DataLoader(data, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = F.mse_loss(model(features), target)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
