"""Blocks whose activations are computed again in backward, dropout included."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 12)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3)
        )
        self.outer = nn.Linear(12, 2)

    def forward(self, x):
        x = self.inner(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.outer(x)


torch.manual_seed(59)
data = TensorDataset(torch.randn(44, 5), torch.randn(44, 2))
model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
