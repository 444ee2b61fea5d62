"""Triplets mined in a batch by `pytorch_metric_learning`: samples are coupled."""

import torch
from pytorch_metric_learning import losses, miners
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(14)
x, y = torch.randn(43, 6), torch.randint(0, 3, (43,))
train = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
mine, criterion = miners.MultiSimilarityMiner(), losses.TripletMarginLoss(margin=0.2)
history = []
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        out = model(a)
        loss = criterion(out, b, mine(out, b))
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = {"trained": model}
