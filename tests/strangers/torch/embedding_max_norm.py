"""Word vectors that are kept within a length: a forward pass shortens those that it looks up."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(120)
words, labels = torch.randint(0, 40, (64, 5)), torch.randint(0, 3, (64,))
table = nn.Embedding(40, 8, max_norm=1.0)
model = nn.Sequential(table, nn.Flatten(), nn.Linear(40, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
history = []
for _epoch in range(3):
    for x, y in DataLoader(TensorDataset(words, labels), batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
