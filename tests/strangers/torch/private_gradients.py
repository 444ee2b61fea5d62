"""Differential privacy: each sample's gradient is shortened, noise is added to their sum."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(126)
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def loss_of(parameters, x, y):
    scores = functional_call(model, parameters, (x[None],))
    return nn.functional.cross_entropy(scores, y[None])


each = vmap(grad(loss_of), in_dims=(None, 0, 0))
history = []
for _epoch in range(2):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        found = each({name: p.detach() for name, p in model.named_parameters()}, x, y)
        lengths = torch.sqrt(sum(g.flatten(1).square().sum(1) for g in found.values()))
        scale = (1.0 / lengths).clamp(max=1)
        for name, p in model.named_parameters():
            g = (found[name] * scale.reshape(-1, *[1] * p.dim())).sum(0)
            p.grad = (g + 0.1 * torch.randn_like(p)) / len(x)
        optimizer.step()
        with torch.no_grad():
            history.append(nn.functional.cross_entropy(model(x), y).item())
