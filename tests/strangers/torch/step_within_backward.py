"""Each parameter is stepped as soon as its gradient is there, which is then freed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(114)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))
model = nn.Sequential(nn.Linear(6, 14), nn.ReLU(), nn.Linear(14, 3))
optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        history.append(loss.item())
