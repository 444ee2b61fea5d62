"""The model is put into evaluation mode and nothing else; figures are sums over the test set."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(39)
train = DataLoader(TensorDataset(torch.randn(48, 5), torch.randint(0, 3, (48,))), batch_size=16)
test = DataLoader(TensorDataset(torch.randn(31, 5), torch.randint(0, 3, (31,))), batch_size=8)
model = nn.Sequential(nn.Linear(5, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []


def evaluate():
    model.eval()
    loss, right, seen = 0.0, 0, 0
    for x, y in test:
        output = model(x)
        loss += F.cross_entropy(output, y, reduction="sum").item()
        right += int((output.argmax(1) == y).sum())
        seen += len(y)
    return [loss / seen, right, seen]


history += evaluate()
for _epoch in range(2):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    history += evaluate()
