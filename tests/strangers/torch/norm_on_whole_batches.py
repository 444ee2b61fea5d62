"""Batches are cut by hand, and the model normalises by them."""

import torch
from torch import nn

torch.manual_seed(38)
x, y = torch.randn(44, 6), torch.randint(0, 3, (44,))
model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _ in range(3):
    model.train()
    order = torch.randperm(len(x))
    for begin in range(0, len(x), 8):
        rows = order[begin : begin + 8]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    model.eval()
    with torch.no_grad():
        history.append(nn.functional.cross_entropy(model(x), y).item())
models = {"trained": model}
