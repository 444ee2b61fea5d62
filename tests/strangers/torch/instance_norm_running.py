"""Instance normalisation that keeps running statistics, and is evaluated by them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(122)
data = TensorDataset(torch.randn(48, 3, 8), torch.randn(48, 1))
model = nn.Sequential(
    nn.Conv1d(3, 4, 3),
    nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(24, 1),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _epoch in range(3):
    model.train()
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    model.eval()
    with torch.no_grad():
        history.append(nn.functional.mse_loss(model(data[:16][0]), data[:16][1]).item())
