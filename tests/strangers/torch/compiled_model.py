"""A model that is compiled, by the backend that needs no compiler."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(45)
data = TensorDataset(torch.randn(42, 6), torch.randn(42, 2))
model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 2))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(2):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
