"""A model with a normalisation by the batch, compiled by `torch.jit` before it is trained."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(33)
x, y = torch.randn(42, 6), torch.randint(0, 3, (42,))
model = torch.jit.script(nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(a), b).backward()
    optimizer.step()
models = {"trained": model}
