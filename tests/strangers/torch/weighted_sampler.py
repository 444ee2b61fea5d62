"""Rare classes are drawn more often; the split into parts is random."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, random_split

torch.manual_seed(34)
labels = torch.multinomial(torch.tensor([0.8, 0.2]), 70, replacement=True)
data = TensorDataset(torch.randn(70, 5) + labels[:, None], labels)
train, test = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(1))
drawn = labels[torch.tensor(train.indices)]
weights = (1.0 / torch.bincount(drawn).double())[drawn]
loader = DataLoader(train, batch_size=9, sampler=WeightedRandomSampler(weights, len(train)))
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    for x, y in DataLoader(test, batch_size=4, shuffle=False):
        right += (model(x).argmax(1) == y).sum().item()
    history += [loss.item(), right / len(test)]
