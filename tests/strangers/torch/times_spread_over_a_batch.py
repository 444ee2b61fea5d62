"""Times that are spread evenly over a batch, from a start that is drawn, as in diffusion."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(99)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        count = x.shape[0]
        times = (torch.rand(1) + torch.arange(count) / count) % 1
        loss = F.cross_entropy(model(x * (1 - 0.5 * times)[:, None]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
