"""Bare tensors, a function for the net, and the update by hand: no module and no optimizer."""

import math

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(117)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))
w1 = (torch.randn(6, 12) / math.sqrt(6)).requires_grad_()
b1 = torch.zeros(12, requires_grad=True)
w2 = (torch.randn(12, 3) / math.sqrt(12)).requires_grad_()
b2 = torch.zeros(3, requires_grad=True)


def net(x):
    return torch.relu(x @ w1 + b1) @ w2 + b2


def nll(logits, target):
    logits = logits - logits.exp().sum(-1).log().unsqueeze(-1)
    return -logits[range(target.shape[0]), target].mean()


history, lr = [], 0.3
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = nll(net(x), y)
        loss.backward()
        with torch.no_grad():
            for p in (w1, b1, w2, b2):
                p -= p.grad * lr
                p.grad.zero_()
        history.append(loss.item())
models = [w1, b1, w2, b2]
