"""L-BFGS with a line search on everything at once; the closure's loss decides."""

import torch
from torch import nn

torch.manual_seed(27)
x = torch.linspace(-2, 2, 37).unsqueeze(1)
y = torch.sin(x)
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
history = []
for _step in range(3):

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    history.append(optimizer.step(closure).item())
