"""Contrast with a momentum encoder: keys of earlier batches wait in a queue that is a buffer."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class MomentumContrast(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.query = nn.Linear(6, 4)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(4, size), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _enqueue(self, keys):
        slots = (int(self.place) + torch.arange(len(keys))) % self.queue.shape[1]
        self.queue[:, slots] = keys.t()
        self.place[0] = (int(self.place) + len(keys)) % self.queue.shape[1]

    def forward(self, one, two):
        q = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            for mine, other in zip(self.key.parameters(), self.query.parameters()):
                mine.mul_(0.9).add_(other, alpha=0.1)
            k = F.normalize(self.key(two), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.clone()], 1) / 0.2
        self._enqueue(k)
        return logits, torch.zeros(len(q), dtype=torch.long)


torch.manual_seed(22)
data = TensorDataset(torch.randn(40, 6))
model = MomentumContrast()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
history = []
for _epoch in range(3):
    for (x,) in DataLoader(data, batch_size=8, shuffle=True):
        logits, labels = model(x, x * 1.1)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
