"""Losses of single sequences of other lengths; their mean, stacked; their sum over a number."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(51)
rows = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in torch.randint(2, 9, (31,)).tolist()]


def collate(items):
    xs, ys = zip(*items)
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), list(ys)


model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
history = []
for epoch in range(6):
    for x, ys in DataLoader(rows, batch_size=7, shuffle=True, collate_fn=collate):
        out = model(x)
        if epoch == 0:
            loss = torch.stack(
                [F.cross_entropy(out[i, : len(y)], y) for i, y in enumerate(ys)]
            ).mean()
        elif epoch == 1:
            loss = torch.stack(
                [
                    F.mse_loss(out[i, : len(y), 0], y.float(), reduction="sum")
                    for i, y in enumerate(ys)
                ]
            ).mean()
        elif epoch == 2:
            loss = sum(
                F.cross_entropy(out[i, : len(y)], y, reduction="sum") for i, y in enumerate(ys)
            ) / sum(len(y) for y in ys)
        elif epoch == 3:
            loss = 0
            for i, y in enumerate(ys):
                loss = loss + F.cross_entropy(out[i, : len(y)], y, reduction="sum") / len(y)
            loss = loss / len(ys)
        elif epoch == 4:
            n = torch.tensor([len(y) for y in ys]).sum()
            loss = sum((out[i, : len(y), 1] - y).pow(2).sum() for i, y in enumerate(ys)) / n
        else:
            loss = 0.01 * sum(
                F.cross_entropy(out[i, : len(y)], y, reduction="sum") for i, y in enumerate(ys)
            )
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
