"""A mixture of experts: each sample goes to the one that its gate likes most."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Mixture(nn.Module):
    def __init__(self, experts=3):
        super().__init__()
        self.gate = nn.Linear(6, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)) for _ in range(experts)
        )

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            (rows,) = (chosen == number).nonzero(as_tuple=True)
            out[rows] = expert(x[rows]) * weight[rows, None]
        return out


torch.manual_seed(101)
labels = torch.randint(4, (46,))
inputs = torch.randn(46, 6) + 0.3 * labels[:, None]
model = Mixture()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=10, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
