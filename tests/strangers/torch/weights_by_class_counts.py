"""Samples that weigh less the more of their class a batch has, counted by scatter_add_."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(95)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        many = torch.zeros(4).scatter_add_(0, y, torch.ones(len(y)))
        loss = (F.cross_entropy(model(x), y, reduction="none") / many[y]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
