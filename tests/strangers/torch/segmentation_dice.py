"""A small U-net; the overlap of the whole batch, and cross entropy, are its loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 6, 3, padding=1)
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 6, 2, 2)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        skip = F.relu(self.down(x))
        deep = F.relu(self.inner(F.max_pool2d(skip, 2)))
        return self.out(torch.cat([skip, self.up(deep)], 1))


def dice_loss(p, y):
    overlap = 2 * (p * y).sum() + 1e-6
    return 1 - overlap / (p.sum() + y.sum() + 1e-6)


torch.manual_seed(54)
images = torch.randn(26, 1, 8, 8)
data = TensorDataset(images, (images > 0.3).float())
model = UNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=5, shuffle=True):
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y) + dice_loss(logits.sigmoid(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
