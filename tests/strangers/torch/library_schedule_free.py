"""AdamW without a schedule: the optimizer has a mode of training and one of evaluation."""

import torch
from schedulefree import AdamWScheduleFree
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
x, y = torch.randn(43, 6), torch.randint(0, 3, (43,))
train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = AdamWScheduleFree(model.parameters(), lr=0.01, warmup_steps=3)
history = []
for _ in range(3):
    model.train()
    optimizer.train()
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    model.eval()
    optimizer.eval()
    with torch.no_grad():
        history.append(nn.functional.cross_entropy(model(x), y).item())
models = {"trained": model}
