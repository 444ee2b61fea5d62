"""The gradients' norm is computed and held by the script's own lines."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)
data = TensorDataset(torch.randn(40, 5), 3 * torch.randn(40, 2))
model = nn.Sequential(nn.Linear(5, 9), nn.Sigmoid(), nn.Linear(9, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        model.zero_grad()
        loss = ((model(x) - y) ** 2).sum(dim=1).mean()
        loss.backward()
        norm = sum(float(p.grad.pow(2).sum()) for p in model.parameters()) ** 0.5
        if norm > 1.0:
            for p in model.parameters():
                p.grad.mul_(1.0 / norm)
        optimizer.step()
        history += [norm, loss.item()]
