"""One task after another: parameters that mattered to the first are held where they were."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(172)
x = torch.randn(45, 6)
first = TensorDataset(x, (x[:, :3] * 2).argmax(1))
second = TensorDataset(x, (x[:, 3:] * 2).argmax(1))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []


def train(data, penalty=None):
    for _epoch in range(2):
        for inputs, labels in DataLoader(data, batch_size=8, shuffle=True):
            loss = F.cross_entropy(model(inputs), labels)
            if penalty is not None:
                loss = loss + penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())


train(first)
importance = [torch.zeros_like(p) for p in model.parameters()]
for inputs, labels in DataLoader(first, batch_size=15):
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    for total, p in zip(importance, model.parameters()):
        total += p.grad**2 / 3
before = [p.detach().clone() for p in model.parameters()]
held = [*zip(importance, model.parameters(), before)]
train(second, lambda: 20 * sum((f * (p - q) ** 2).sum() for f, p, q in held))
