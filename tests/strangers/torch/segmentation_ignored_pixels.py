"""A class a pixel; 255 is no class, and counts for nothing. A second output helps the first."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.out, self.aux = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        h = self.trunk(x)
        return {"out": self.out(h), "aux": self.aux(h)}


torch.manual_seed(55)
labels = torch.randint(0, 3, (27, 6, 6))
labels[torch.rand(27, 6, 6) < torch.rand(27, 1, 1)] = 255
data = TensorDataset(torch.randn(27, 2, 6, 6), labels)
model = Segmenter()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=20, power=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=6, shuffle=True, drop_last=True):
        losses = {k: F.cross_entropy(v, y, ignore_index=255) for k, v in model(x).items()}
        loss = losses["out"] + 0.5 * losses["aux"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history.append(loss.item())
