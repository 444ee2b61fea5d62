"""Two sources joined, split at random, of which a subset is drawn by weights."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    WeightedRandomSampler,
    random_split,
)


class Source(Dataset):
    def __init__(self, rows, shift):
        rng = np.random.RandomState(rows)
        self.x = rng.randn(rows, 4).astype("float32") + shift
        self.y = (self.x.sum(1) > shift).astype("int64")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


torch.manual_seed(107)
np.random.seed(107)
both = ConcatDataset([Source(31, 0.0), Source(22, 1.0)])
train, _rest = random_split(both, [40, 13], generator=torch.Generator().manual_seed(7))
kept = Subset(train, np.random.permutation(len(train))[:33])
labels = torch.tensor([int(kept[i][1]) for i in range(len(kept))])
weights = (1.0 / torch.bincount(labels).float())[labels]
sampler = WeightedRandomSampler(weights, num_samples=29, replacement=True)
loader = DataLoader(kept, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(4, 10), nn.LeakyReLU(), nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in loader:
        loss = nn.functional.nll_loss(model(x).log_softmax(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
