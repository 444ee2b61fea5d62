"""A batch whose loss is not finite, or far above the running one, is left out."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(123)
x = torch.randn(43, 6)
x[5] = float("nan")
x[17] *= 40.0
data = TensorDataset(x, torch.randn(43, 2))
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
running, skipped, history = None, 0, []
for _epoch in range(3):
    for xb, yb in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        value = loss.item()
        if not math.isfinite(value) or (running is not None and value > 5 * running):
            skipped += 1
            continue
        loss.backward()
        optimizer.step()
        running = value if running is None else 0.9 * running + 0.1 * value
        history.append(value)
history.append(skipped)
