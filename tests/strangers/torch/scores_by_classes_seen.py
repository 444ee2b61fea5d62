"""Scores that are shifted by how often each class has been seen so far, or by a little at least."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(96)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
history = []
seen = torch.zeros(4)
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        seen += torch.bincount(y, minlength=4)
        often = (seen / seen.sum()).clamp(min=1e-3)
        loss = F.cross_entropy(model(x) + often.log(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
