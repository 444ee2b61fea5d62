"""An optimizer that is no subclass of any: it keeps the parameters in a list, and steps them."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Lion:
    def __init__(self, parameters, rate):
        self.parameters, self.rate = list(parameters), rate
        self.momentum = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.parameters, self.momentum):
            if p.grad is not None:
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                p -= self.rate * (m / (m.abs() + 0.1))

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


torch.manual_seed(176)
data = TensorDataset(torch.randn(46, 6), torch.randint(0, 3, (46,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = Lion(model.parameters(), 0.05)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
