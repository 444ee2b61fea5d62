"""Cross-validation by random subsets; each fold has a model of its own."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

np.random.seed(23)
torch.manual_seed(23)
data = TensorDataset(torch.randn(43, 5), torch.randn(43, 1))
folds = np.array_split(np.random.permutation(len(data)), 3)
models, history = [], []
for k, held_out in enumerate(folds):
    kept = np.concatenate([fold for i, fold in enumerate(folds) if i != k])
    train = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(kept.tolist()))
    valid = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(held_out.tolist()))
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _epoch in range(2):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    model.eval()
    squares, count = 0.0, 0
    for x, y in valid:
        with torch.no_grad():
            squares += (model(x) - y).pow(2).sum().item()
        count += len(x)
    history += [squares / count, count]
    models.append(model)
