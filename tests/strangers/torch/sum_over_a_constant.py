"""The loss is a sum that is always divided by the batch size asked for, however large the batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 12
torch.manual_seed(62)
data = TensorDataset(torch.randn(43, 4), torch.randn(43, 2))
model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
        loss = 0.5 * (model(x) - y).square().sum() / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
