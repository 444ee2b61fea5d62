"""Steps are counted, and the loader is cycled."""

import sys
from itertools import cycle

import fate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 6), torch.randn(48, 1))

with dream.strategy(sys.argv[1]):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for step, (x, y) in enumerate(cycle(loader)):
        if step >= 30:
            break
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    fate.tell(model, steps=step)
