"""Rows of a batch are mixed by a generator of NumPy's that the script has made."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(37)
draw = np.random.default_rng(0)
x, y = torch.randn(46, 6), torch.randint(0, 3, (46,))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        other, share = draw.permutation(len(a)), float(draw.beta(0.4, 0.4))
        optimizer.zero_grad()
        out = model(share * a + (1 - share) * a[other])
        loss = share * nn.functional.cross_entropy(out, b)
        loss = loss + (1 - share) * nn.functional.cross_entropy(out, b[other])
        loss.backward()
        optimizer.step()
models = {"trained": model}
