"""A second loss is weighed by the ratio of both losses' gradients at the last layer."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(72)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
last = model[-1].weight
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        scores = model(x)
        first, second = F.cross_entropy(scores, y), scores.square().mean()
        (one,) = torch.autograd.grad(first, last, retain_graph=True)
        (other,) = torch.autograd.grad(second, last, retain_graph=True)
        weight = (one.norm() / (other.norm() + 1e-4)).clamp(0.0, 1e4).detach()
        loss = first + 0.5 * weight * second
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
