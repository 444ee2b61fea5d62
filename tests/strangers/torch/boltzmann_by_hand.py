"""A restricted Boltzmann machine by contrastive divergence: updates by hand, no gradient."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(23)
data = torch.rand(47, 10) * torch.linspace(0.5, 1.5, 10)
loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True)

mean, seen = torch.zeros(10), 0
for (x,) in loader:
    mean += x.sum(0)
    seen += len(x)
mean /= seen

weights = torch.randn(10, 5) * 0.1
visible, hidden = torch.zeros(10), torch.zeros(5)
history = [float(seen)]
for _epoch in range(3):
    error = 0.0
    for (x,) in loader:
        v = (x > mean).float()
        up = torch.sigmoid(v @ weights + hidden)
        down = torch.sigmoid(torch.bernoulli(up) @ weights.t() + visible)
        again = torch.sigmoid(down @ weights + hidden)
        weights += 0.1 * (v.t() @ up - down.t() @ again) / len(v)
        visible += 0.1 * (v - down).mean(0)
        hidden += 0.1 * (up - again).mean(0)
        error += (v - down).square().sum().item()
    history.append(error / len(data))
models = [weights, visible, hidden, mean]
