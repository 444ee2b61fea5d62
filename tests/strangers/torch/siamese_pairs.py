"""Two inputs through one network, a contrastive loss on the distance of each pair."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

random.seed(10)
torch.manual_seed(10)


class Pairs(Dataset):
    def __init__(self, samples, labels):
        self.samples, self.labels = samples, labels
        self.others = [random.randrange(len(samples)) for _ in range(len(samples))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        other = self.others[index]
        same = float(self.labels[index] == self.labels[other])
        return self.samples[index], self.samples[other], torch.tensor(same)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.bn = nn.BatchNorm1d(4)

    def one(self, x):
        return self.trunk(x)

    def forward(self, a, b):
        return self.bn(self.one(a)), self.bn(self.one(b))


labels = torch.randint(0, 4, (43,))
loader = DataLoader(Pairs(torch.randn(43, 8) + labels[:, None], labels), batch_size=8, shuffle=True)
model = Siamese()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
history = []
for _epoch in range(3):
    for a, b, same in loader:
        optimizer.zero_grad()
        one, two = model(a, b)
        distance = F.pairwise_distance(one, two)
        loss = torch.mean(same * distance**2 + (1 - same) * F.relu(1.5 - distance) ** 2)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
