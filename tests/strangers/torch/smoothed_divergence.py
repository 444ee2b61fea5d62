"""Smoothed labels by the Kullback-Leibler divergence, a mean by the batch, over true words."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LabelSmoothing(nn.Module):
    def __init__(self, size, padding, smoothing):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="batchmean")
        self.size, self.padding, self.smoothing = size, padding, smoothing

    def forward(self, x, target):
        true = torch.full_like(x, self.smoothing / (self.size - 2))
        true.scatter_(1, target.unsqueeze(1), 1 - self.smoothing)
        true[:, self.padding] = 0
        true[target == self.padding] = 0
        return self.criterion(x, true)


torch.manual_seed(104)
data = TensorDataset(torch.randint(1, 9, (41, 6)), torch.randint(0, 9, (41, 6)))
model = nn.Sequential(nn.Embedding(9, 10), nn.Linear(10, 9), nn.LogSoftmax(-1))
criterion = LabelSmoothing(9, 0, 0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(x).view(-1, 9), y.reshape(-1))
        loss.backward()
        optimizer.step()
        history.append(loss.item())
