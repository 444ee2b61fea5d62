"""Noise that grows with how many samples the dataset has given out."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Harder(Dataset):
    given = 0

    def __init__(self, samples):
        self.x, self.y = torch.randn(samples, 6), torch.randint(0, 3, (samples,))
        self.noise = torch.randn(samples, 6)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.given += 1
        return self.x[index] + self.noise[index] * self.given / 200, self.y[index]


torch.manual_seed(171)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(Harder(47), batch_size=9, shuffle=True)
history = []
for _epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
