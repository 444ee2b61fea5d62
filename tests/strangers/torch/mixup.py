"""Images mixed with others of their batch, in proportions drawn from a beta distribution."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

np.random.seed(15)
torch.manual_seed(15)
data = TensorDataset(torch.randn(42, 6), torch.randint(0, 3, (42,)))
model = nn.Sequential(nn.Linear(6, 14), nn.ReLU(), nn.Linear(14, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        share = np.random.beta(0.4, 0.4)
        other = torch.randperm(x.size(0))
        output = model(share * x + (1 - share) * x[other])
        loss = share * criterion(output, y) + (1 - share) * criterion(output, y[other])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
