"""Optimizers of `pytorch_optimizer`: SAM by a closure, Lookahead around another, Lion."""

import torch
from pytorch_optimizer import SAM, Lion, Lookahead
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
x, y = torch.randn(43, 6), torch.randint(0, 3, (43,))
train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
history, models = [], {}
for name in ("sam", "lookahead", "lion"):
    model = models[name] = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    if name == "sam":
        optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9)
    elif name == "lookahead":
        optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.01), k=3)
    else:
        optimizer = Lion(model.parameters(), lr=1e-3)
    for _ in range(2):
        for a, b in train:

            def closure(a=a, b=b):
                loss = nn.functional.cross_entropy(model(a), b)
                loss.backward()
                return loss

            loss = closure()
            optimizer.step(closure if name == "sam" else None)
            optimizer.zero_grad()
            history.append(loss.item())
