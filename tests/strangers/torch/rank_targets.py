"""A ranker that learns each item's place in its batch, with weights over the largest."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(93)
items, relevance = torch.randn(60, 7), torch.rand(60)
model = nn.Sequential(nn.Linear(7, 14), nn.SiLU(), nn.Linear(14, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
history = []
for _epoch in range(2):
    for x, r in DataLoader(TensorDataset(items, relevance), batch_size=12, shuffle=True):
        place = r.argsort(descending=True).argsort().float() / len(r)
        weight = r / r.max()
        loss = (weight * (model(x).squeeze(1) - place) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
