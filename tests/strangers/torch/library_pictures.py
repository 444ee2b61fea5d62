"""A ResNet of `torchvision`, whose transforms turn and crop pictures as they are read."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.models import resnet18
from torchvision.transforms import v2

torch.manual_seed(19)
augment = v2.Compose([
    v2.ToImage(),
    v2.RandomCrop(32, padding=2),
    v2.RandomHorizontalFlip(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.5] * 3, [0.25] * 3),
])  # fmt: skip
train = FakeData(20, (3, 32, 32), num_classes=3, transform=augment)
loader = DataLoader(train, batch_size=8, shuffle=True)
model = resnet18(num_classes=3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
history = []
for _epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
