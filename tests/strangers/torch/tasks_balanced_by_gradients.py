"""Two tasks whose weights follow the lengths of their gradients at the shared layer (GradNorm)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(129)
data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1), torch.randint(0, 3, (64,)))
shared = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
heads = nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 3)])
weights = nn.Parameter(torch.ones(2))
models = [shared, heads, weights]
optimizer = torch.optim.SGD([*shared.parameters(), *heads.parameters()], lr=0.1)
balance = torch.optim.SGD([weights], lr=0.05)
history = []
for _epoch in range(2):
    for x, value, kind in DataLoader(data, batch_size=16, shuffle=True):
        features = shared(x)
        losses = [
            nn.functional.mse_loss(heads[0](features), value),
            nn.functional.cross_entropy(heads[1](features), kind),
        ]
        lengths = [
            torch.autograd.grad(w * each, shared[0].weight, retain_graph=True, create_graph=True)[
                0
            ].norm()
            for w, each in zip(weights, losses)
        ]
        mean = (sum(lengths) / 2).detach()
        unbalance = sum((length - mean).abs() for length in lengths)
        balance.zero_grad()
        weights.grad = torch.autograd.grad(unbalance, weights, retain_graph=True)[0]
        loss = sum(w.detach() * each for w, each in zip(weights, losses))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        balance.step()
        with torch.no_grad():
            weights.mul_(2 / weights.sum())
        history.append(loss.item())
