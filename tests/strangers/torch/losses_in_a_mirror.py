"""Dropout twice: both answers are to be right, and alike (R-Drop)."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(131)
data = TensorDataset(torch.randn(46, 6), torch.randint(0, 3, (46,)))
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        one, two = model(x), model(x)
        apart = F.kl_div(one.log_softmax(-1), two.softmax(-1), reduction="batchmean")
        apart = apart + F.kl_div(two.log_softmax(-1), one.softmax(-1), reduction="batchmean")
        loss = 0.5 * (F.cross_entropy(one, y) + F.cross_entropy(two, y)) + 0.5 * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
