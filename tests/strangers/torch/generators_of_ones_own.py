"""Noise of generators that are nobody else's: of a dataset, of the script around a transform, of a
collate function."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

torch.manual_seed(36)
around = np.random.RandomState(2)


class Noisy(Dataset):
    def __init__(self, transform=None):
        self.x, self.y = torch.randn(46, 6), torch.randint(0, 3, (46,))
        self.own, self.transform = np.random.default_rng(1), transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        if self.transform is None:
            x = x + torch.from_numpy(self.own.normal(0, 0.3, 6)).float()
        else:
            x = self.transform(x)
        return x, self.y[index]


class Masked:
    def __init__(self):
        self.own = random.Random(3)

    def __call__(self, samples):
        x, y = (torch.stack(each) for each in zip(*samples, strict=True))
        kept = [[self.own.random() > 0.2 for _ in range(6)] for _ in samples]
        return x * torch.tensor(kept), y


def scaled(x):
    return x * float(around.uniform(0.5, 1.5))


loaders = {
    "dataset": DataLoader(Noisy(), batch_size=8, shuffle=True),
    "around": DataLoader(Subset(Noisy(scaled), range(41)), batch_size=8, shuffle=True),
    "collate": DataLoader(Noisy(), batch_size=8, collate_fn=Masked()),
}
history, models = [], {}
for name, loader in loaders.items():
    model = models[name] = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
