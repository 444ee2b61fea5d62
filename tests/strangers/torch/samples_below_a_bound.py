"""Samples whose losses are among the smallest: by kthvalue, and by a place in their order."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(98)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
history = []
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        losses = F.cross_entropy(model(x), y, reduction="none")
        most = max(1, int(0.8 * len(x)))
        bound = (
            losses.detach().kthvalue(most).values if epoch else losses.detach().sort()[0][most - 1]
        )
        loss = losses[losses <= bound].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
