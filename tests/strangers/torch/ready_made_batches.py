"""The dataset gives whole batches, the loader makes none; each epoch has its own seed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, i):
        part = slice(i * self.size, (i + 1) * self.size)
        return self.x[part], self.y[part]


torch.manual_seed(125)
x = torch.randn(43, 6)
model = nn.Sequential(nn.Linear(6, 12), nn.CELU(), nn.Linear(12, 1))
loader = DataLoader(Batches(x, x.prod(1, keepdim=True), 8), batch_size=None, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for epoch in range(3):
    torch.manual_seed(1000 + epoch)
    for xb, yb in loader:
        noise = 0.1 * torch.randn_like(xb)
        loss = nn.functional.mse_loss(model(xb + noise), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
