"""Batches that a loop has changed and kept; later loops make others of them, with noise or not."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(43)
data = TensorDataset(torch.randn(37, 5), torch.randn(37, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Linear(5, 10), nn.BatchNorm1d(10), nn.Dropout(0.2), nn.Tanh(), nn.Linear(10, 1)
)
opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
batches = [(x * 2, y) for x, y in loader]
history = []
for epoch in range(5):
    for x, y in batches:
        if epoch == 1:
            x = (x.double() - 0.1).float()
        elif epoch == 2:
            x = x + 0.1 * torch.randn_like(x)
        elif epoch == 3:
            x = x + 0.1 * torch.randn(len(x), 5)
        loss = ((model(x) - y) ** 2).sum() / x.size(0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
