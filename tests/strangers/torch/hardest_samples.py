"""The mean over the half of a batch with the greatest losses."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(73)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
criterion = nn.CrossEntropyLoss(reduction="none")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        losses = criterion(model(x), y)
        loss = losses.topk(max(1, len(losses) // 2)).values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
