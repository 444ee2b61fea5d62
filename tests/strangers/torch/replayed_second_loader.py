"""Two models on two loaders of one length; one of them is begun anew at every step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(38)
first = DataLoader(TensorDataset(torch.randn(33, 4)), batch_size=8, shuffle=True)
second = DataLoader(TensorDataset(torch.randn(33, 4) + 1), batch_size=8, shuffle=True)
forth, back = nn.Linear(4, 4), nn.Linear(4, 4)
optimizer = torch.optim.SGD([*forth.parameters(), *back.parameters()], lr=0.05)
l1, history = nn.L1Loss(), []
for _epoch in range(2):
    others = iter(second)
    for (a,) in first:
        (b,) = next(others)
        cycle_a, cycle_b = back(forth(a)), forth(back(b))
        (extra,) = next(iter(second))
        loss = l1(cycle_a, a) + l1(cycle_b, b) + 0.5 * l1(forth(extra), extra)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = [forth, back]
