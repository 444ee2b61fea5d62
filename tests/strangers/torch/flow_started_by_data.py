"""A normalising flow whose scales are set by the first batch (activation normalisation)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ActNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.shift, self.log_scale = (
            nn.Parameter(torch.zeros(width)),
            nn.Parameter(torch.zeros(width)),
        )
        self.started = False

    def forward(self, x):
        if not self.started:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-x.std(0).log())
            self.started = True
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([ActNorm(4), ActNorm(4)])
        self.nets = nn.ModuleList([nn.Linear(2, 4), nn.Linear(2, 4)])

    def forward(self, x):
        total = x.new_zeros(len(x))
        for norm, net in zip(self.norms, self.nets):
            x, logs = norm(x)
            one, two = x.chunk(2, 1)
            scale, shift = net(one).chunk(2, 1)
            scale = torch.tanh(scale)
            x = torch.cat([two * scale.exp() + shift, one], 1)
            total = total + logs + scale.sum(1)
        return x, total


torch.manual_seed(121)
data = torch.randn(64, 4) * 3 + 2
model = Flow()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
for _epoch in range(3):
    for (x,) in DataLoader(TensorDataset(data), batch_size=16, shuffle=True):
        z, logs = model(x)
        loss = (0.5 * z.square().sum(1) - logs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
