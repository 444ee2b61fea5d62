"""A recurrent net whose gradient is held within bounds at every step of time, by a function."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bound):
        ctx.bound = bound
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-ctx.bound, ctx.bound), None


bounded = Bounded.apply


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.RNNCell(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        hidden = x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            hidden = bounded(self.cell(x[:, t], hidden), 0.003)
        return self.out(hidden)


torch.manual_seed(128)
data = TensorDataset(torch.randn(60, 7, 3), torch.randn(60, 1))
model = Recurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
