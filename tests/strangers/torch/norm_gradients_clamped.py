"""A hook before a normalisation's backward keeps its gradients small."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(141)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))
model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
model[1].register_full_backward_pre_hook(lambda _m, grads: (grads[0].clamp(-0.01, 0.01),))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
