"""An average of the parameters by `torch_ema`, put in for an evaluation and taken out after it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_ema import ExponentialMovingAverage

torch.manual_seed(12)
x, y = torch.randn(43, 6), torch.randint(0, 3, (43,))
train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
average = ExponentialMovingAverage(model.parameters(), decay=0.9)
history = []
for _ in range(3):
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        average.update()
        history.append(loss.item())
    model.eval()
    with average.average_parameters(), torch.no_grad():
        history.append(nn.functional.cross_entropy(model(x), y).item())
average.copy_to()
models = {"average": model}
