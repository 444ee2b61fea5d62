"""A network that solves a differential equation: derivatives by its inputs are in the loss."""

import torch
from torch import nn

torch.manual_seed(49)
model = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = torch.zeros(1, 1)
history = []
for _step in range(15):
    t = (torch.rand(21, 1) * 3.0).requires_grad_(True)
    u = model(t)
    (du,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
    (ddu,) = torch.autograd.grad(du, t, torch.ones_like(du), create_graph=True)
    residual = (ddu + 0.3 * du + u).pow(2).mean()
    boundary = (model(start) - 1.0).pow(2).squeeze()
    loss = residual + 5.0 * boundary
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
