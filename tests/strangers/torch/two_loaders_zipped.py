"""Labelled and unlabelled batches of different sizes side by side; the shorter one begins anew."""

from itertools import cycle

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(37)
labelled = TensorDataset(torch.randn(21, 5), torch.randint(0, 3, (21,)))
unlabelled = TensorDataset(torch.randn(55, 5))
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
small = DataLoader(labelled, batch_size=6, shuffle=True)
large = DataLoader(unlabelled, batch_size=13, shuffle=True)
history = []
for _epoch in range(3):
    for (x, y), (u,) in zip(cycle(small), large):
        supervised = F.cross_entropy(model(x), y)
        with torch.no_grad():
            guess = F.softmax(model(u), dim=1)
        consistency = F.mse_loss(F.softmax(model(u + 0.1 * torch.randn_like(u)), dim=1), guess)
        loss = supervised + 2.0 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
