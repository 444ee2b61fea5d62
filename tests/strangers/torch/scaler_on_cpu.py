"""A scaler whose gradients the script unscales before it clips; a leftover micro-batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(127)
data = TensorDataset(torch.randn(58, 6), torch.randint(0, 3, (58,)))
loader = DataLoader(data, batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
every, history = 3, []
for _epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        left = len(loader) % every
        over = left if left and i >= len(loader) - left else every
        scaler.scale(loss / over).backward()
        history.append(loss.item())
        if (i + 1) % every == 0 or i + 1 == len(loader):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
