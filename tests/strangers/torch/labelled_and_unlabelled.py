"""Labelled rows and two views of unlabelled ones, from two loaders, in one call."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(72)
few = TensorDataset(torch.randn(26, 6), torch.randint(0, 3, (26,)))
many = TensorDataset(torch.randn(90, 6))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
history = []
for _epoch in range(3):
    labelled = iter(DataLoader(few, batch_size=4, shuffle=True, drop_last=True))
    for (u,) in DataLoader(many, batch_size=16, shuffle=True, drop_last=True):
        x, y = next(labelled)
        weak = u + 0.05 * torch.randn(len(u), 6)
        strong = u * torch.bernoulli(torch.full_like(u, 0.7))
        out = model(torch.cat([x, weak, strong]))
        scores = out[: len(x)]
        one, two = out[len(x) :].chunk(2)
        sure, guess = one.detach().softmax(-1).max(-1)
        kept = (sure > 0.4).float()
        loss = F.cross_entropy(scores, y)
        loss = loss + (F.cross_entropy(two, guess, reduction="none") * kept).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
