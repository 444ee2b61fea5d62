"""The rate falls where the epoch's loss stands still; training ends when it does so for long."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(29)
data = TensorDataset(torch.randn(41, 3), torch.randn(41, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1)
best, waited, history = float("inf"), 0, []
for epoch in range(25):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mean = sum(losses) / len(losses)
    scheduler.step(mean)
    history += [mean, optimizer.param_groups[0]["lr"]]
    best, waited = (mean, 0) if mean < best - 1e-3 else (best, waited + 1)
    if waited == 4:
        history.append(epoch)
        break
