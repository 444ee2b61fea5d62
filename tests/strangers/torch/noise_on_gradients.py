"""Annealed Gaussian noise is added to the gradients, after they are brought to a length of one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(115)
data = TensorDataset(torch.randn(43, 6), torch.randn(43, 3).softmax(1))
model = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history, step = [], 0
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, error_if_nonfinite=True)
        with torch.no_grad():
            for p in model.parameters():
                p.grad.add_(torch.randn_like(p.grad), alpha=0.05 / (1 + step) ** 0.55)
        optimizer.step()
        step += 1
        history += [loss.item(), norm.item()]
