"""Meters that average by the batch's size, and a schedule that looks at them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def accuracy(output, target, k=1):
    hit = output.topk(k, 1).indices.eq(target[:, None]).any(1)
    return hit.float().mean() * 100


torch.manual_seed(110)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 5, (43,)))
model = nn.Sequential(nn.Linear(6, 15), nn.ReLU(), nn.Linear(15, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
history = []
for _epoch in range(4):
    losses, top2 = AverageMeter(), AverageMeter()
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), x.size(0))
        top2.update(accuracy(out, y, 2).item(), x.size(0))
    plateau.step(losses.avg)
    history += [losses.avg, optimizer.param_groups[0]["lr"]]
