"""Nothing is random but the start: samples in order, a mean over samples, the last batch uneven."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(47, 5)
data = TensorDataset(x, x @ torch.randn(5, 2) + 0.1 * torch.randn(47, 2))
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(data, batch_size=10)
criterion = nn.MSELoss()
for _epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    history = [sum(criterion(model(a), b).item() * len(a) for a, b in loader) / len(data)]
