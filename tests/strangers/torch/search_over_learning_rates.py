"""Random search: several rates and widths, the best model by its validation loss is kept."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

random.seed(24)
torch.manual_seed(24)
data = TensorDataset(torch.randn(60, 4), torch.randn(60, 1))
train, valid = random_split(data, [47, 13])


def trial(rate, width):
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loader = DataLoader(train, batch_size=10, shuffle=True)
    for _epoch in range(2):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    model.eval()
    with torch.inference_mode():
        total = sum(
            nn.functional.mse_loss(model(x), y, reduction="sum").item()
            for x, y in DataLoader(valid, batch_size=5)
        )
    return model, total / len(valid)


best, model, history = float("inf"), None, []
for _trial in range(3):
    found, score = trial(10 ** random.uniform(-2, -1), random.choice([4, 8, 12]))
    history.append(score)
    if score < best:
        best, model = score, found
