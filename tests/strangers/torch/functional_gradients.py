"""Gradients as a function of parameters, by torch.func alone; no backward, no optimizer."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(47)
data = TensorDataset(torch.randn(41, 4), torch.randn(41, 3))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(weights, x, y):
    return nn.functional.mse_loss(functional_call(model, weights, (x,)), y)


history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=9, shuffle=True):
        weights = {name: p.detach() for name, p in model.named_parameters()}
        gradients, loss = grad_and_value(loss_of)(weights, x, y)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.1 * gradients[name]
        history.append(loss.item())
