"""Negatives from a queue of earlier keys, which the newest are joined to, and the oldest leave."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(97)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
history = []
queue = F.normalize(torch.randn(20, 4), dim=1)
for _epoch in range(3):
    for x, _ in DataLoader(data, batch_size=8, shuffle=True):
        asked = F.normalize(model(x), dim=1)
        with torch.no_grad():
            keys = F.normalize(model(x + 0.1), dim=1)
        own = (asked * keys).sum(1, keepdim=True)
        scores = torch.cat([own, asked @ queue.T], 1) / 0.2
        loss = F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue = torch.cat([queue, keys])[-20:]
        history.append(loss.item())
