"""An imbalanced problem: cross entropy with a weight a class, and a penalty on the weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
y = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 61, replacement=True)
x = torch.randn(61, 6) + y[:, None]
counts = torch.bincount(y, minlength=3)
criterion = nn.CrossEntropyLoss(weight=counts.sum() / (3.0 * counts))
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
history = []
for _epoch in range(4):
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True):
        penalty = sum(p.abs().sum() for p in model.parameters())
        loss = criterion(model(inputs), targets) + 1e-3 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
