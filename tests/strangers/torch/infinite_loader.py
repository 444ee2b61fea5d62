"""A generator that never ends feeds a loop that counts steps."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def cycle(loader):
    while True:
        yield from loader


torch.manual_seed(35)
data = TensorDataset(torch.randn(29, 4), torch.randn(29, 3))
batches = cycle(DataLoader(data, batch_size=8, shuffle=True, drop_last=True))
model = nn.Sequential(nn.Linear(4, 10), nn.ELU(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _step in range(17):
    x, y = next(batches)
    loss = nn.functional.l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
