"""Meta-learning: a copy of the model learns a task for some steps; the model moves towards it."""

import copy

import numpy as np
import torch
from torch import nn

torch.manual_seed(120)
rng = np.random.RandomState(120)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
x_all = torch.linspace(-3, 3, 20)[:, None]
history = []
for iteration in range(8):
    amplitude, phase = rng.uniform(0.5, 2), rng.uniform(0, 3)
    y_all = amplitude * torch.sin(x_all + phase)
    learner = copy.deepcopy(model)
    inner = torch.optim.SGD(learner.parameters(), lr=0.05)
    order = rng.permutation(20)
    for start in range(0, 20, 7):
        rows = torch.as_tensor(order[start : start + 7])
        inner.zero_grad()
        loss = (learner(x_all[rows]) - y_all[rows]).pow(2).mean()
        loss.backward()
        inner.step()
        history.append(loss.item())
    rate = 0.5 * (1 - iteration / 8)
    with torch.no_grad():
        for p, q in zip(model.parameters(), learner.parameters()):
            p.add_(q - p, alpha=rate)
