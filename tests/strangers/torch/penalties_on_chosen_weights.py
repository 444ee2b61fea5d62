"""Some weights are held small, by a mask, by their places, and by a loss of their own."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(211)
x = torch.randn(59, 10)
data = TensorDataset(x, (x[:, 0] - x[:, 3] + 0.1 * torch.randn(59) > 0).long())
model = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 2))
weight = model[0].weight
noisy = torch.tensor([4, 5, 6, 7])
kept = torch.rand(12, 10) < 0.5
smooth = torch.eye(12) - 0.4 * torch.eye(12).roll(1, 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for xb, yb in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        small = weight[kept].abs().sum() + weight[:, noisy].pow(2).sum()
        near_half = F.binary_cross_entropy_with_logits(
            model[2].weight, torch.full((2, 12), 0.5), reduction="sum"
        )
        even = model[0].bias @ smooth @ model[0].bias
        loss = F.cross_entropy(model(xb), yb) + 0.01 * (small + near_half + even)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
