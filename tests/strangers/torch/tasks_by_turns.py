"""Two models with one trunk are trained by turns, then in one step, then by one loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(136)
first = TensorDataset(torch.randn(43, 6), torch.randn(43, 2))
second = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))
trunk = nn.Sequential(nn.Linear(6, 10), nn.Tanh())
regressor, classifier = (
    nn.Sequential(trunk, nn.Linear(10, 2)),
    nn.Sequential(trunk, nn.Linear(10, 3)),
)
parameters = {*regressor.parameters(), *classifier.parameters()}
optimizer = torch.optim.SGD(sorted(parameters, key=lambda p: p.shape), lr=0.1, momentum=0.9)
history = []
for epoch in range(4):
    pairs = zip(DataLoader(first, batch_size=8), DataLoader(second, batch_size=8))
    for (x, y), (u, v) in pairs:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(regressor(x), y)
        if epoch < 3:
            loss.backward()
        if epoch == 0:
            optimizer.step()
            optimizer.zero_grad()
        other = nn.functional.cross_entropy(classifier(u), v)
        if epoch < 3:
            other.backward()
        else:
            (loss + other).backward()
        optimizer.step()
        history += [loss.item(), other.item()] if epoch < 3 else []
models = [regressor, classifier]
