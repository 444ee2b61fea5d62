"""A batch in two parts, each with a step of its own, to save memory."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(104)
labels = torch.randint(4, (46,))
inputs = torch.randn(46, 6) + 0.3 * labels[:, None]
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _epoch in range(3):
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=10, shuffle=True):
        for part, wanted in zip(x.chunk(2), y.chunk(2)):
            optimizer.zero_grad()
            F.cross_entropy(model(part), wanted).backward()
            optimizer.step()
