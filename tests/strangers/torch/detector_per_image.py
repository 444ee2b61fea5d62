"""RetinaNet's way: each image's loss by its own foreground, then the mean of a list."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

torch.manual_seed(9)


def item():
    k = int(torch.randint(1, 5, (1,)))
    return torch.randn(12, 6), torch.randint(0, 12, (k,)), torch.rand(k, 2)


loader = DataLoader(
    [item() for _ in range(33)], batch_size=5, shuffle=True, collate_fn=lambda b: list(zip(*b))
)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for points, cells, boxes in loader:
        out = model(torch.stack(points))
        losses = []
        for i in range(len(cells)):
            fg = torch.zeros(12)
            fg[cells[i]] = 1.0
            n = max(1, fg.sum().item())
            p = torch.sigmoid(out[i, :, 0])
            pt = p * fg + (1 - p) * (1 - fg)
            focal = (
                (1 - pt) ** 2
                * F.binary_cross_entropy_with_logits(out[i, :, 0], fg, reduction="none")
            ).sum() / n
            reg = F.l1_loss(out[i, cells[i], 1:], boxes[i], reduction="sum") / n
            losses.append(focal + reg)
        loss = torch.stack(losses).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
