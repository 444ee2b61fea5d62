"""Small images made large by shuffled pixels; judged by the peak signal-to-noise ratio."""

from math import log10

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(52)
large = torch.rand(23, 1, 8, 8)
data = TensorDataset(nn.functional.avg_pool2d(large, 2), large)
train = DataLoader(data, batch_size=5, shuffle=True)
test = DataLoader(data, batch_size=10, shuffle=False)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2)
)
nn.init.orthogonal_(model[0].weight, nn.init.calculate_gain("relu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion, history = nn.MSELoss(), []
for _epoch in range(3):
    epoch_loss = 0
    for x, y in train:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        epoch_loss += loss.item() if loss.backward() is None else 0
        optimizer.step()
    history.append(epoch_loss / len(train))
    with torch.no_grad():
        ratios = [10 * log10(1 / criterion(model(x), y).item()) for x, y in test]
    history.append(sum(ratios) / len(test))
