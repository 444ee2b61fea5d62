"""Hooks of modules bound the gradients that pass between layers; an average of the weights follows
as a deep copy."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(135)
data = TensorDataset(torch.randn(42, 6), torch.randn(42, 2))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))


def bound(_module, grad_input, _grad_output):
    return tuple(None if g is None else g.clamp(-0.003, 0.003) for g in grad_input)


for layer in model:
    if isinstance(layer, nn.Tanh):
        layer.register_full_backward_hook(bound)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters()):
                slow.lerp_(fast, 0.1)
        history.append(loss.item())
models = [model, average]
