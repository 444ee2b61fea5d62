"""Each sample's loss is computed by itself and added to the batch's: sequences of unequal length,
as people write it who do not pad."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(91)
samples = [(torch.randn(3 + i % 4, 5), i % 3) for i in range(38)]
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
history = []
for _epoch in range(3):
    for batch in DataLoader(samples, batch_size=8, shuffle=True, collate_fn=list):
        features = torch.stack([frames.mean(0) for frames, _ in batch])
        scores = model(features)
        loss = 0.0
        for score, (_, label) in zip(scores, batch):
            loss = loss + F.cross_entropy(score[None], torch.tensor([label]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
