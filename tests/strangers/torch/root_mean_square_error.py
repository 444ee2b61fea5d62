"""The loss is the root of the batch's mean square error."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(56)
data = TensorDataset(torch.randn(45, 5), torch.randn(45, 1))
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion, history = nn.MSELoss(), []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = torch.sqrt(criterion(model(x), y) + 1e-8)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
