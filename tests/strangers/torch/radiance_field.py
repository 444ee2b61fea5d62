"""Rays through a scene: random rays, points along them at jittered depths, summed into a colour."""

import numpy as np
import torch
from torch import nn

np.random.seed(50)
torch.manual_seed(50)
directions = nn.functional.normalize(torch.randn(100, 3), dim=1)
colours = torch.rand(100, 3)


def encode(x):
    return torch.cat([x] + [f(2.0**i * x) for i in range(3) for f in (torch.sin, torch.cos)], -1)


model = nn.Sequential(nn.Linear(21, 24), nn.ReLU(), nn.Linear(24, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _step in range(12):
    chosen = np.random.choice(100, size=16, replace=False)
    rays = directions[chosen]
    depths = torch.linspace(0.5, 2.0, 8) + torch.rand(16, 8) * 0.2
    points = rays[:, None] * depths[..., None]
    raw = model(encode(points))
    alpha = 1.0 - torch.exp(-torch.relu(raw[..., 3] + 0.1 * torch.randn_like(raw[..., 3])) * 0.2)
    clear = torch.cumprod(torch.cat([torch.ones(16, 1), 1.0 - alpha + 1e-10], 1), 1)[:, :-1]
    rendered = ((alpha * clear)[..., None] * torch.sigmoid(raw[..., :3])).sum(1)
    loss = torch.mean((rendered - colours[chosen]) ** 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history += [loss.item(), -10.0 * np.log10(loss.item())]
