"""Samples are flipped and jittered as they are taken out of the data set."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

random.seed(58)
torch.manual_seed(58)


class Augmented(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn(image.shape), self.labels[index]


data = Augmented(torch.randn(37, 1, 6, 6), torch.randint(0, 4, (37,)))
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
