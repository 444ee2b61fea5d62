"""A time series with gaps: errors are summed over what is there, and divided by how much it is."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(61)
series = torch.randn(43, 7, 3)
there = (torch.rand(43, 7) < torch.rand(43, 1)).float()
data = TensorDataset(series, there)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


model = Forecaster()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, mask in DataLoader(data, batch_size=8, shuffle=True):
        error = (model(x)[:, :-1] - x[:, 1:]).pow(2).mean(-1)
        weight = mask[:, :-1] * mask[:, 1:]
        loss = (error * weight).sum() / (weight.sum() + 1e-8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
