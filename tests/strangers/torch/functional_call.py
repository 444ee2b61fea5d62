"""Weights that are made by other weights: a layer is called with its parameters given."""

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(46)
data = TensorDataset(torch.randn(41, 4), torch.randn(41, 3))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
scale = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=9, shuffle=True):
        weights = dict(model.named_parameters())
        weights["2.weight"] = weights["2.weight"] * scale[:, None]
        loss = nn.functional.mse_loss(functional_call(model, weights, (x,)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = [model, scale]
