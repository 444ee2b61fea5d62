"""A neural ODE whose field is solved directly: the model is only called by the solver."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdiffeq import odeint_adjoint

torch.manual_seed(10)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        return self.net(y**3)


start = torch.randn(29, 2)
true = torch.stack([start * (1 - 0.2 * t) for t in range(4)], 1)
history = []
model = Field()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(3):
    for y0, y in DataLoader(TensorDataset(start, true), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        out = odeint_adjoint(model, y0, torch.linspace(0, 1, 4), method="rk4")
        loss = (out - y.transpose(0, 1)).abs().mean()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = {"field": model}
