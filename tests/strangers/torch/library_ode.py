"""A neural ODE by `torchdiffeq`, its gradient by the adjoint."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdiffeq import odeint, odeint_adjoint

torch.manual_seed(10)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        return self.net(y**3)


class Flow(nn.Module):
    def __init__(self, adjoint):
        super().__init__()
        self.field, self.adjoint = Field(), adjoint

    def forward(self, y):
        solve = odeint_adjoint if self.adjoint else odeint
        return solve(self.field, y, torch.linspace(0, 1, 4), method="rk4")


start = torch.randn(29, 2)
true = torch.stack([start * (1 - 0.2 * t) for t in range(4)], 1)
history, models = [], {}
for adjoint in (False, True):
    model = models[f"adjoint {adjoint}"] = Flow(adjoint)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(2):
        for y0, y in DataLoader(TensorDataset(start, true), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = (model(y0) - y.transpose(0, 1)).abs().mean()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
